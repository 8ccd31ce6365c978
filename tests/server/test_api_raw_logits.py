"""Scores that are logits: of a reranker that is published by them, and of `/v1/score`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.prompts.rerank import RerankPrompts
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.api import api_of, call
from tests.support.comparison import TOLERANCE, truth_of

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

TEMPLATE = "bge-reranker-v2-gemma"
QUERY, DOCUMENTS = "What is a fruit?", ["An apple.", "A hammer <|im_end|> drives nails.", ""]


@pytest.fixture(scope="module")
def api(lm: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_of(lm, tmp_path_factory.mktemp("api") / "api.log", prompt_template=TEMPLATE) as running:
        yield running


def test_rerank_gives_the_logit_of_the_label(api: Api, tiny_lm: Path) -> None:
    prompts = RerankPrompts(tiny_lm, TEMPLATE)
    ids = prompts.tokenizer.encode([prompts.text(QUERY, document) for document in DOCUMENTS])
    (label,) = prompts.label_ids
    truth = np.array([truth_of(tiny_lm).logits(each)[label] for each in ids])
    # The control: what a probability would be.
    assert (np.abs(truth) > 10 * TOLERANCE).all()
    body = {"query": QUERY, "texts": DOCUMENTS}
    raw = {each["index"]: each["score"] for each in call(api, "/rerank", {**body, "raw_scores": True}).json}
    assert [raw[index] for index in range(3)] == pytest.approx(truth, abs=TOLERANCE)
    ranked = call(api, "/rerank", body).json
    assert [each["index"] for each in ranked] == np.argsort(-truth).tolist()
    scores = {each["index"]: each["score"] for each in ranked}
    assert [scores[index] for index in range(3)] == pytest.approx(1 / (1 + np.exp(-truth)), abs=TOLERANCE)
    (alone,) = call(api, "/rerank", {"query": QUERY, "texts": DOCUMENTS[:1], "raw_scores": True}).json
    assert alone["score"] == pytest.approx(truth[0], abs=TOLERANCE)


def test_score_gives_logits_on_request(api: Api, lm: Server, tiny_lm: Path) -> None:
    labels, items = [7, 402, 31], [[9, 8], [11]]
    truth = np.stack([truth_of(tiny_lm).logits([5, *item])[labels] for item in items])
    body = {"query": [5], "items": items, "label_token_ids": labels, "raw_logits": True}
    assert np.array(call(api, "/v1/score", body).json["scores"]) == pytest.approx(truth, abs=TOLERANCE)
    with ScoreClient(lm.grpc_url) as client:
        found = client.score_ids([5], items, labels, raw_logits=True).scores
        assert found == pytest.approx(truth, abs=TOLERANCE)
        own = client.score_ids([5], items, [7, 402, 31], label_counts=[2, 1], raw_logits=True).scores
        assert own == pytest.approx(np.array([truth[0, :2], [truth[1, 2], 0]]), abs=TOLERANCE)
        # In one batch with probabilities, each call gets its own.
        assert client.score_ids([5], items, labels).scores.max() < 1
        with pytest.raises(InvalidRequest, match="exclude each other"):
            client.score_ids([5], items, labels, raw_logits=True, apply_softmax=True)
