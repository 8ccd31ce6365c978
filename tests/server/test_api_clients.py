"""The HTTP API as the clients of other servers call it: each gets the ranking that transformers gives."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.prompts.rerank import RerankPrompts
from tests.server.api import api_of
from tests.support.comparison import truth_of

pytestmark = [pytest.mark.server, pytest.mark.slow]

QUERY, DOCUMENTS = "What is a fruit?", ["A hammer drives nails.", "An apple is a fruit.", "Rain falls."]
KEY = "test-key"


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("api")
    (directory / "keys").write_text(KEY)
    with api_of(server, directory / "api.log", api_keys_file=directory / "keys") as running:
        yield running


@pytest.fixture(scope="module")
def truth(smollm: Path) -> np.ndarray:
    """P(Yes) against P(No) by transformers: float64 [documents]."""
    tokenizer, prompts = AutoTokenizer.from_pretrained(smollm), RerankPrompts(smollm)
    ids = [tokenizer(prompts.text(QUERY, each), add_special_tokens=False)["input_ids"] for each in DOCUMENTS]
    return truth_of(smollm).scores([], ids, prompts.label_ids, apply_softmax=True)[:, 0]


def check(found: list[tuple[int, float]], truth: np.ndarray) -> None:
    """Index and score of each document, best first."""
    order = [int(index) for index in np.argsort(-truth)][: len(found)]
    assert [index for index, _ in found] == order
    assert [score for _, score in found] == pytest.approx(truth[order], abs=1e-5)


def test_cohere(api: Api, truth: np.ndarray) -> None:
    cohere = pytest.importorskip("cohere")

    client = cohere.ClientV2(KEY, base_url=api.url)
    answer = client.rerank(model="any", query=QUERY, documents=DOCUMENTS, top_n=2)
    check([(each.index, each.relevance_score) for each in answer.results], truth)
    with pytest.raises(cohere.errors.BadRequestError, match="documents"):
        client.rerank(model="any", query=QUERY, documents=[])
    with pytest.raises(cohere.errors.UnauthorizedError):
        cohere.ClientV2("other", base_url=api.url).rerank(model="any", query=QUERY, documents=DOCUMENTS)


@pytest.mark.parametrize("provider", ["cohere", "hosted_vllm", "jina_ai"])
def test_litellm(api: Api, truth: np.ndarray, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")

    base = {"cohere": f"{api.url}/v2/rerank", "hosted_vllm": api.url, "jina_ai": f"{api.url}/v1/rerank"}
    answer = litellm.rerank(
        model=f"{provider}/any",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=3,
        api_base=base[provider],
        api_key=KEY,
    )
    check([(each["index"], each["relevance_score"]) for each in answer.results], truth)


def test_langchain_nvidia(api: Api, truth: np.ndarray) -> None:
    pytest.importorskip("langchain_nvidia_ai_endpoints")
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIARerank

    ranker = NVIDIARerank(base_url=f"{api.url}/v1", model="any", api_key=KEY, top_n=3)
    ranked = ranker.compress_documents([Document(page_content=each) for each in DOCUMENTS], QUERY)
    found = [(DOCUMENTS.index(each.page_content), each.metadata["relevance_score"]) for each in ranked]
    logits = np.log(truth) - np.log1p(-truth)
    order = [int(index) for index in np.argsort(-truth)]
    assert [index for index, _ in found] == order
    assert [score for _, score in found] == pytest.approx(logits[order], abs=1e-4)


def test_rerankers(api: Api, truth: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    api_rankers = pytest.importorskip("rerankers.models.api_rankers")

    # The package knows the addresses of services alone.
    monkeypatch.setitem(api_rankers.URLS, "cohere", f"{api.url}/v1/rerank")
    ranked = api_rankers.APIRanker("any", KEY, "cohere").rank(QUERY, DOCUMENTS)
    check([(each.doc_id, each.score) for each in ranked.results], truth)


@pytest.fixture(scope="module", autouse=True)
def _nothing_but_loopback() -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        os.environ.pop(name, None)
    urllib.request.getproxies()
