"""Values at many places of a prompt, and heads of reward models, against transformers or the head's few lines."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from hiscore.errors import RequestError
from hiscore.models.model_classes import MODEL_CLASSES
from hiscore.models.support import read_step_id
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.requests.options import ScoreOptions, parse_options
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import with_places
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources
from tests.support import tiny_encoders, tiny_models
from tests.support.comparison import TOLERANCE
from tests.support.strategies import random_tokens

NO_LABELS = np.empty(0, np.int32)
LABELS = 3
SHAPES = ((0, [9]), (5, [4]), (0, [3, 70, 1]), (40, [6]))
"""Tokens of a query and its items; a query with one item becomes a part of it."""


def scorer_of(checkpoint: Path, budget: int = 64, cache: int | None = None) -> Scorer:
    return make_scorer(checkpoint, "cpu", "float32", budget, cache, None, ServerResources())


def request(scorer: Scorer, prompt: MultiItemPrompt, **options: object) -> ScoreRequest:
    """A request as its reader makes it."""
    chosen = replace(ScoreOptions(), **options)
    placed, places = with_places(prompt, chosen, scorer.facts)
    return replace(ScoreRequest(scorer.packing.prompt(placed), NO_LABELS, chosen), places=places)


def values(scorer: Scorer, prompts: Sequence[MultiItemPrompt], **options: object) -> list[np.ndarray]:
    """The values at all places, one batch for all prompts."""
    answers, _ = scorer.score([request(scorer, prompt, **options) for prompt in prompts])
    return [answer.place_values for answer in answers]


class EveryToken:
    """The logits of a class of transformers at each token of each item, one item at a time."""

    def __init__(self, checkpoint: Path, name: str = "AutoModelForTokenClassification") -> None:
        kind = getattr(transformers, name)
        self.model = kind.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
        self.head = lambda output: output.logits

    @torch.inference_mode()
    def at(self, prompt: MultiItemPrompt) -> np.ndarray:
        ends, tokens = prompt.item_ends, torch.from_numpy(prompt.tokens).long()
        query, rows = tokens[: prompt.query_length], []
        for begin, end in pairwise(ends):
            output = self.model(torch.cat((query, tokens[begin:end]))[None])
            rows.append(self.head(output)[0, 0 if len(ends) == 2 else len(query) :])
        return torch.cat(rows).numpy()


def prompts_of(seed: int, shapes: Sequence[tuple[int, list[int]]] = SHAPES) -> list[MultiItemPrompt]:
    rng = np.random.default_rng(seed)
    return [random_tokens(rng, query, items, 400).prompt() for query, items in shapes]


def check(scorer: Scorer, truth: EveryToken, prompts: Sequence[MultiItemPrompt]) -> None:
    for found, prompt in zip(values(scorer, prompts, places="all"), prompts, strict=True):
        expected = truth.at(prompt)
        # Logits: unlike probabilities they may be large, and rounded as such.
        np.testing.assert_allclose(found, expected, atol=TOLERANCE * max(1, np.abs(expected).max()))


OF_TOKENS = {
    name: family
    for name, (family, _) in tiny_models.FAMILIES.items()
    if any(each.endswith("TokenClassification") for each in MODEL_CLASSES.get(family, ()))
}
FIRST = ("qwen3", "gemma2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.exhaustive) for name in OF_TOKENS],
)
def test_a_decoder_classifies_every_token_as_transformers_does(name: str, tmp_path: Path) -> None:
    tiny_models.make(name, tmp_path, LABELS, of="TokenClassification")
    # Small forwards: prompts are cut between places, and queries are found in the cache.
    scorer, truth = scorer_of(tmp_path), EveryToken(tmp_path)
    assert scorer.facts.scores_tokens
    for _ in range(2):
        check(scorer, truth, prompts_of(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*(n for n in tiny_encoders.ENCODERS if not n.startswith("new")), "mistral-both-ways", "qwen3-both-ways"],
)
def test_an_encoder_classifies_every_token_as_transformers_does(name: str, tmp_path: Path) -> None:
    """And a decoder that attends in both directions."""
    make = (tiny_encoders if name in tiny_encoders.ENCODERS else tiny_models).make
    make(name, tmp_path, LABELS, of="TokenClassification")
    check(scorer_of(tmp_path), EveryToken(tmp_path), prompts_of(1, [(0, [9]), (0, [3, 70, 1])]))


REWARDS = {
    "outcome": ("qwen2", "ForRewardModel", 1),
    "outcome of Qwen 3": ("qwen3", "ForRewardModel", 1),
    "process": ("qwen2", "ForProcessRewardModel", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "labels"), REWARDS.values(), ids=REWARDS)
def test_a_reward_is_that_of_the_two_layers_on_the_model(
    name: str, kind: str, labels: int, tmp_path: Path
) -> None:
    """By the head as Qwen's own code has it: `Linear`, `ReLU`, `Linear`, at every token."""
    checkpoint = tiny_models.make_reward_model(name, tmp_path, kind, labels)
    tensors = load_file(checkpoint / "model.safetensors")
    first, bias, last, last_bias = (tensors[name] for name in tiny_models.REWARD_HEAD)
    truth = EveryToken(checkpoint, "AutoModel")
    truth.head = lambda out: (out.last_hidden_state @ first.T + bias).relu() @ last.T + last_bias
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 64)
    check(scorer, truth, prompts_of(2))
    if labels == 1:
        prompt = prompts_of(2)[2]
        (answer,), _ = scorer.score([ScoreRequest(prompt, NO_LABELS, ScoreOptions())])
        assert answer.place_values is None
        expected = truth.at(prompt)[prompt.item_ends[1:] - 1]
        np.testing.assert_allclose(answer.scores, expected, atol=TOLERANCE)
    truth.head = lambda out: (out.last_hidden_state @ first.T + bias) @ last.T + last_bias
    with pytest.raises(AssertionError):  # control: without the ReLU
        check(scorer, truth, prompts_of(2))


def test_a_stream_guards_two_heads_have_their_norms_and_labels(tmp_path: Path) -> None:
    """By `Qwen3ForGuardModel.forward` in SGLang: risks and categories of answers, then of queries."""
    tensors = load_file(tiny_models.make_guard(tmp_path) / "model.safetensors")
    truth, eps = EveryToken(tmp_path, "AutoModel"), 1e-6

    def heads(output: Any, swapped: bool = False) -> torch.Tensor:
        found = []
        for of in ("query_", "") if swapped else ("", "query_"):
            inner = output.last_hidden_state @ tensors[f"{of}risk_level_category_pre.weight"].T
            scale = (inner.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
            normed = inner * scale * tensors[f"{of}risk_level_category_layernorm.weight"]
            found += [normed @ tensors[f"{of}{kind}_head.weight"].T for kind in ("risk_level", "category")]
        return torch.cat(found, -1)

    truth.head = heads
    scorer = scorer_of(tmp_path)
    check(scorer, truth, prompts_of(5))
    with pytest.raises(RequestError, match="several groups"):
        request(scorer, prompts_of(5)[0], apply_softmax=True)
    truth.head = partial(heads, swapped=True)
    with pytest.raises(AssertionError):
        check(scorer, truth, prompts_of(5))


def test_many_places_are_computed_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise as many rows of the last layer and the head would be alive as a forward has."""
    tiny_models.make_reward_model("qwen2", tmp_path, "ForProcessRewardModel", 2)
    scorer, prompts, rows = scorer_of(tmp_path, budget=128), prompts_of(6), list[int]()
    whole = values(scorer, prompts, places="all")
    for module in ("hiscore.models.decoder", "hiscore.layers.lm_head"):
        monkeypatch.setattr(f"{module}.ROWS_AT_ONCE", 7)
    weights = vars(scorer.computation.head)
    first = weights["_first_layer"]
    weights["_first_layer"] = lambda hidden: rows.append(len(hidden)) or first(hidden)
    for found, expected in zip(values(scorer, prompts, places="all"), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert sum(rows) > 100
    assert max(rows) <= 7


def test_places_are_read_beside_items_and_by_part(tmp_path: Path) -> None:
    """The kind: a number of what a batch reads that is taken for another's."""
    tiny_models.make("llama", tmp_path, LABELS)
    scorer = scorer_of(tmp_path, budget=32)
    same = random_tokens(np.random.default_rng(3), 40, [5, 0, 33, 7], 400).prompt()
    (whole,) = values(scorer, [same], places=tuple(range(40, 85)))
    plain = ScoreRequest(same, NO_LABELS, ScoreOptions())
    asked = request(scorer, same, places=(40, 44, 45, 80, 84))
    (alone, between, after), stats = scorer.score([plain, asked, plain])
    assert stats.items == 12
    assert np.array_equal(alone.scores, between.scores)
    assert np.array_equal(after.scores, between.scores)
    np.testing.assert_allclose(between.place_values, whole[[0, 4, 5, 40, 44]], atol=TOLERANCE)
    # The last tokens of items are where items are scored.
    assert np.array_equal(between.place_values[[1, 4]], between.scores[[0, 3]])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(between.place_values, whole[[1, 5, 6, 41, 43]], atol=TOLERANCE)
    batched = BatchedScorer(scorer, lambda stats: None)
    parts = [asked.part(asked.prompt.part(*span), span[0]) for span in ((0, 1), (1, 2), (2, 4))]
    answers = [launched.finish()[0] for part in parts for launched in batched.launch([part])]
    joined = batched.join(asked, answers)
    assert joined["places"].tolist() == [[40, 44, 45, 80, 84]]
    np.testing.assert_allclose(joined["place_values"][0], between.place_values, atol=TOLERANCE)
    softmax = values(scorer, [same], places=(84,), apply_softmax=True)[0]
    np.testing.assert_allclose(softmax.sum(), 1, atol=TOLERANCE)


@pytest.mark.slow
def test_long_and_short_items_keep_their_places(tmp_path: Path) -> None:
    """With longrope they are prompts of their own."""
    tiny_models.make("phi3", tmp_path, LABELS, of="TokenClassification")
    scorer = scorer_of(tmp_path, budget=512)
    prompt = random_tokens(np.random.default_rng(4), 0, [4, 2_060, 6], 400).prompt()
    (found,) = values(scorer, [prompt])
    for begin, end in pairwise(prompt.item_ends):
        (alone,) = values(scorer, [MultiItemPrompt.of([], [prompt.tokens[begin:end].tolist()])])
        np.testing.assert_allclose(found[begin:end], alone, atol=TOLERANCE)


def test_steps_of_a_solution_are_read_at_their_tag(tmp_path: Path) -> None:
    tiny_models.make_reward_model("qwen2", tmp_path, "ForProcessRewardModel", 2)
    assert read_step_id(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 7, "content": "<extra_0>"}]}')
    scorer = scorer_of(tmp_path)
    assert scorer.facts.step_id == 7
    prompt = MultiItemPrompt.of([1, 7], [[2, 7, 3, 7, 4]])
    assert request(scorer, prompt).places.tolist() == [1, 3, 5]
    every, steps = (values(scorer, [prompt], places=each)[0] for each in ("all", None))
    np.testing.assert_allclose(steps, every[[1, 3, 5]], atol=TOLERANCE)


REFUSED = {
    "beyond the end": ({"places": (3, 9)}, [1], [[2, 3], [4]], "holds 9: query and items have 4 tokens"),
    "in the query of two": ({"places": (0,)}, [1], [[2], [3]], "in the query of 2 items"),
    "all of a query and two": ({"places": "all"}, [1], [[2], [3]], "it needs exactly one item"),
}


@pytest.mark.parametrize(("options", "query", "items", "says"), REFUSED.values(), ids=REFUSED)
def test_places_that_are_not_there_are_refused(
    options: dict[str, object], query: list[int], items: list[list[int]], says: str, tmp_path: Path
) -> None:
    tiny_models.make("llama", tmp_path, LABELS)
    with pytest.raises(RequestError, match=says):
        request(scorer_of(tmp_path), MultiItemPrompt.of(query, items), **options)


@pytest.mark.parametrize("value", ["[1, 1]", "[2, 1]", "[-1]", "[1.5]", "some", 3, "[true]", "{}"])
def test_bad_places_are_refused(value: object) -> None:
    with pytest.raises(RequestError, match="parameter 'places' must"):
        parse_options(
            f'{{"places": {value if isinstance(value, int) else repr(value).replace(chr(39), chr(34))}}}'
        )
    assert parse_options('{"places": "[0, 3]"}').places == (0, 3)


def test_models_without_values_at_places_say_so(tmp_path: Path) -> None:
    for make, says in (
        (partial(tiny_models.make, "llama"), "read at the end of an item alone"),
        (partial(tiny_encoders.make, "bert"), "read at the end of an item alone"),
        (partial(tiny_encoders.make, "bert", of="TokenClassification"), "without a query"),
    ):
        scorer = scorer_of(make(tmp_path / f"{says}{make.args}{make.keywords}"))
        with pytest.raises(RequestError, match=says):
            request(scorer, MultiItemPrompt.of([1], [[2]]), places="all")
