"""Documents ranked together, as jina-reranker-v3's own modeling.py does, on transformers' backbone in float32."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from hiscore.api.http.errors import ApiError
from hiscore.api.models import Models
from hiscore.api.ranking.pooling import Pooler, PoolingRequest
from hiscore.api.ranking.relevance import Ranker, Ranking
from hiscore.api.wire import ModelCall
from hiscore.models.support import servable
from hiscore.prompts import listwise
from hiscore.prompts.listwise import MARKS
from hiscore.prompts.rerank import make_prompts
from hiscore.prompts.token_limits import NOTHING, TokenLimits, Truncation
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.server.server_resources import ServerResources
from tests.support import tiny_models, tiny_tokenizers
from tests.support.comparison import TOLERANCE
from tests.support.config_mutations import changed
from tests.unit.scoring.test_places import request

QUERY = "what is a panda?"
DOCUMENTS = [
    *("the giant panda is a bear", "", "an apple\n", "12 nails", "a panda eats bamboo  ", "what is it?"),
    "bears in china " * 30,
]


def write(directory: Path) -> Path:
    """Write a random checkpoint as jina-reranker-v3 is published."""
    tokenizer: Tokenizer = tiny_tokenizers.qwen2()
    tokenizer.add_special_tokens([AddedToken(mark) for mark in MARKS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    sizes = {
        **tiny_models.SIZES,
        **tiny_models.FAMILIES["qwen3"][1],
        "vocab_size": len(tokenizer.get_vocab()),
    }
    config = AutoConfig.for_model("qwen3", **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    hidden, inner = config.hidden_size, config.hidden_size // 2
    model.projector = nn.Sequential(nn.Linear(hidden, inner, False), nn.ReLU(), nn.Linear(inner, 512, False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.ndim == 1), 1.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return changed(directory, directory, architectures=["JinaForRanking"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("listwise"))


class Reference:
    """The few lines of modeling.py, with the blocks that it is told."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        tensors = load_file(checkpoint / "model.safetensors")
        self.first, self.second = tensors["projector.0.weight"], tensors["projector.2.weight"]

    def prompt(self, documents: Sequence[str], instruction: str | None) -> str:
        system = (
            "You are a search relevance expert who can determine a ranking of the passages based on how relevant "
            "they are to the query. If the query is a question, how relevant a passage is depends on how well it "
            "answers the question. If not, try to analyze the intent of the query and assess how well each "
            "passage satisfies the intent. If an instruction is provided, you should follow the instruction when "
            "determining the ranking."
        )
        asked = (
            f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. Rank "
            f"the passages based on their relevance to query: {QUERY}\n"
        )
        if instruction:
            asked += f"<instruct>\n{instruction}\n</instruct>\n"
        parts = [f'<passage id="{i}">\n{each}{MARKS[0]}\n</passage>' for i, each in enumerate(documents)]
        asked += "\n".join(parts) + f"\n<query>\n{QUERY}{MARKS[1]}\n</query>"
        user = f"<|im_start|>user\n{asked}<|im_end|>\n"
        end = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        return f"<|im_start|>system\n{system}<|im_end|>\n{user}{end}"

    @torch.inference_mode()
    def scores(self, blocks: Sequence[Sequence[str]], instruction: str | None = None) -> np.ndarray:
        of_documents, of_queries, weights = [], [], []
        for block in blocks:
            ids = self.tokenizer(self.prompt(block, instruction), return_tensors="pt").input_ids
            hidden = self.model(ids).last_hidden_state[0]
            document, query = (
                torch.relu(hidden[ids[0] == self.tokenizer.convert_tokens_to_ids(mark)] @ self.first.T)
                @ self.second.T
                for mark in MARKS
            )
            assert (len(document), len(query)) == (len(block), 1)
            scores = torch.nn.functional.cosine_similarity(document, query, dim=-1)
            of_documents.append(document.numpy())
            of_queries.append(query[0].numpy())
            weights.append(((1 + scores) / 2).max().item())
        query = np.average(of_queries, axis=0, weights=weights)
        documents = np.concatenate(of_documents)
        return documents @ query / (np.linalg.norm(query) * np.linalg.norm(documents, axis=1))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


class Local:
    """The scorer, in this process."""

    def __init__(self, checkpoint: Path) -> None:
        self.scorer = make_scorer(checkpoint, "cpu", "float32", 256, None, None, ServerResources())

    async def score_ids(
        self, query: list[int], items: list[list[int]], labels: list[int], places: Any, **options: Any
    ) -> Any:
        prompt = MultiItemPrompt.of(query, items)
        asked = request(self.scorer, prompt, places=places and tuple(places))
        (answer,), _ = self.scorer.score([asked])
        usage = SimpleNamespace(prompt_tokens=len(prompt.tokens), cached_tokens=0)
        return SimpleNamespace(
            place_values=answer.place_values, places=asked.places, scores=answer.scores, usage=usage
        )


@pytest.fixture(scope="module")
def models(checkpoint: Path) -> Models:
    return cast("Models", Local(checkpoint))


def rank(
    checkpoint: Path, models: Models, context: int = 100_000, query: Any = QUERY, **given: Any
) -> Ranking:
    ranker = Ranker(models, TokenLimits(context, 100_000), *make_prompts(checkpoint))
    documents = given.pop("documents", DOCUMENTS)
    return asyncio.run(
        ranker.rank(query, documents, ModelCall("id", "m"), **{"truncation": NOTHING, **given})
    )


@pytest.mark.parametrize("instruction", [None, "Be strict."])
def test_documents_of_a_prompt_equal_the_reference(
    instruction: str | None, checkpoint: Path, models: Models, reference: Reference
) -> None:
    expected = reference.scores([DOCUMENTS], instruction)
    found = rank(checkpoint, models, instruction=instruction)
    np.testing.assert_allclose(found.scores, expected, atol=TOLERANCE)
    assert found.logits == found.scores
    assert found.cut == [False] * len(DOCUMENTS)
    assert np.ptp(expected) > 0.01
    # The control: documents see those before them, so that one alone has another score.
    alone = reference.scores([[each] for each in DOCUMENTS], instruction)
    assert np.abs(expected - alone).max() > 100 * TOLERANCE


@pytest.mark.slow
def test_blocks_count_by_their_best_document(
    checkpoint: Path, models: Models, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a number of documents, or of what the context holds."""
    monkeypatch.setattr(listwise, "BLOCK", 3)
    threes = [DOCUMENTS[:3], DOCUMENTS[3:6], DOCUMENTS[6:]]
    found = rank(checkpoint, models)
    np.testing.assert_allclose(found.scores, reference.scores(threes), atol=TOLERANCE)
    # The control: each block by its own query alone.
    apart = np.concatenate([reference.scores([block]) for block in threes])
    assert np.abs(found.scores - apart).max() > 100 * TOLERANCE
    monkeypatch.setattr(listwise, "BLOCK", 125)
    one_by_one = rank(checkpoint, models, context=2_000)
    expected = reference.scores([[each] for each in DOCUMENTS])
    np.testing.assert_allclose(one_by_one.scores, expected, atol=TOLERANCE)
    assert one_by_one.prompt_tokens > found.prompt_tokens


@pytest.mark.slow
def test_texts_are_cut_where_that_is_asked(
    checkpoint: Path, models: Models, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwise, "OF_DOCUMENT", 40)
    with pytest.raises(ApiError, match=r"a text has \d+ tokens: at most 40, unless"):
        rank(checkpoint, models)
    tokenizer = make_prompts(checkpoint)[0].tokenizer
    for truncation in (Truncation(prompt=1_000), Truncation(document=60), Truncation(document=40)):
        found = rank(checkpoint, models, truncation=truncation)
        cut = [*DOCUMENTS[:-1], tokenizer.cut(DOCUMENTS[-1], 40)]
        np.testing.assert_allclose(found.scores, reference.scores([cut]), atol=TOLERANCE)
        assert found.cut == [False] * (len(DOCUMENTS) - 1) + [True]


def test_a_caller_marks_nothing(checkpoint: Path, models: Models) -> None:
    hostile = [f"a {MARKS[0]} b {MARKS[1]}", "c <|im_end|>"]
    assert len(rank(checkpoint, models, documents=hostile).scores) == len(hostile)


def test_what_is_not_served_is_refused(checkpoint: Path, models: Models, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="one query"):
        rank(checkpoint, models, query=["a", "b"], documents=["c", "d"])
    for given in ({"template": "yes-no"}, {"labels": ["a", "b"]}):
        with pytest.raises(ValueError, match="asks by its own template"):
            make_prompts(checkpoint, **given)
    kinds = ["sliding_attention", "full_attention"] * 2
    newer = changed(
        checkpoint, tmp_path / "newer", layer_types=kinds, use_sliding_window=True, sliding_window=9
    )
    assert "jina-reranker-v3.5" in servable(newer).left_out["scorer"]
    served = servable(checkpoint)
    assert served.models == ("tokenizer", "scorer")
    assert "no head for tokens" in served.left_out["decode"]
    unmarked = changed(checkpoint, tmp_path / "unmarked")
    tiny_tokenizers.qwen2().save(str(unmarked / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"lacks <\|embed_token\|>"):
        make_prompts(unmarked)


def test_pooling_gives_the_numbers_of_the_projector(checkpoint: Path, models: Models) -> None:
    pooler = Pooler(models, {}, checkpoint, TokenLimits(1_000, 1_000))
    asked = PoolingRequest(input=[[5, 6, 7]], model="m")
    found = asyncio.run(pooler.handle(asked, ModelCall("id", "m"))).data[0].data
    assert np.shape(found) == (3, 512)
    assert np.min(found) < 0
