"""Prompts on both sides of longrope's original context, against transformers, one item at a time, in float32."""

import json
from pathlib import Path

import numpy as np
import pytest

from hiscore.models.config import generation_context, read_facts
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.prefix_cache import QueryKey
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.rotations import Rotations
from hiscore.scoring.scorer import Scorer
from tests.support.decoding import build
from tests.support.scoring import LABELS, score
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY, make
from tests.support.truth import Truth

ORIGINAL, LONGEST = 80, 256
SOFTMAX = ScoreOptions(apply_softmax=True)
# What the contract allows between float32 implementations that add in different orders.
TOLERANCE = 1e-4
SHAPES = {
    "short": (70, [3, 10]),
    "long": (70, [11, 40]),
    "at the border": (79, [1, 2]),
    "both": (66, [40, 3, 15, 0, 14, 90]),
    "a long query": (100, [0, 7]),
    "no query": (0, [80, 81, 5]),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make("phi3", tmp_path_factory.mktemp("longrope"))
    path = directory / "config.json"
    config = json.loads(path.read_text())
    # transformers moves the original context from the one place to the other.
    config |= {"max_position_embeddings": LONGEST, "original_max_position_embeddings": ORIGINAL}
    config["rope_parameters"]["original_max_position_embeddings"] = ORIGINAL
    path.write_text(json.dumps(config | {"sliding_window": None}))
    return directory


@pytest.fixture(scope="module")
def truth(checkpoint: Path) -> Truth:
    return Truth(checkpoint)


def calls() -> list[Tokens]:
    """All shapes. The first two have the same query, short with the items of one, long with the other's."""
    rng = np.random.default_rng(7)
    first, second, *others = (random_tokens(rng, *shape, VOCABULARY) for shape in SHAPES.values())
    return [first, Tokens(first.query, second.items), *others]


def check(scorer: Scorer, truth: Truth, batch: list[Tokens]) -> None:
    for call, found in zip(batch, score(scorer, batch, SOFTMAX), strict=True):
        expected = truth.scores(call.query, call.items, LABELS, apply_softmax=True)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("budget", [32, 96, 2_048])
@pytest.mark.parametrize("cache_bytes", [0, 2**22])
def test_scores_equal_transformers_one_at_a_time(
    budget: int, cache_bytes: int, checkpoint: Path, truth: Truth
) -> None:
    """Each call by itself, then again, and all in one batch; queries from the cache if there is one."""
    scorer = Scorer(checkpoint, "cpu", "float32", budget, cache_bytes)
    assert scorer.facts.context_length == LONGEST
    for call in calls():
        check(scorer, truth, [call])
        check(scorer, truth, [call])
    check(scorer, truth, calls())


def test_a_graph_has_the_angles_of_its_batch(
    checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: rows are copied into place, and graphs replayed."""
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from tests.support.cuda_runner import use_cuda_runner

    scorer = Scorer(checkpoint, "cpu", "float32", 256)
    use_cuda_runner(scorer, monkeypatch, 256)
    check(scorer, truth, calls())


@pytest.mark.parametrize("rotated", ["all as if short", "all as if long"])
def test_control_one_table_for_all_fails(
    rotated: str, checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = Scorer(checkpoint, "cpu", "float32", 2_048, 0)
    wrong = Rotations(10 * LONGEST if rotated == "all as if short" else -1, LONGEST)
    monkeypatch.setattr(scorer, "_rotations", wrong)
    with pytest.raises(AssertionError):
        check(scorer, truth, calls())


def test_control_keys_of_the_other_table_fail(
    checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that was cached behind short items, taken for long ones."""
    of = QueryKey.of
    monkeypatch.setattr(QueryKey, "of", lambda tokens, salt=b"": of(tokens))
    short, long, *_ = calls()
    scorer = Scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    check(scorer, truth, [short])
    with pytest.raises(AssertionError):
        check(scorer, truth, [long])


def test_a_query_counts_as_cached_where_all_its_items_found_it(checkpoint: Path) -> None:
    scorer = Scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    query, (short, long) = calls()[0].query, ([5, 6], [7] * 20)

    def cached(*items: list[int]) -> int:
        request = request_of(Tokens(query, list(items)))
        (answer,), _ = scorer.score([request])
        return answer.cached_tokens

    assert cached(short) == 0
    assert cached(short) == 64
    assert cached(short, long) == 0
    assert cached(short, long) == 64


def test_what_a_long_prompt_costs_knows_its_cached_query(checkpoint: Path) -> None:
    """The batch is planned with the key under which the query is cached."""
    scorer = Scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    long = request_of(calls()[1], scorer)
    before = scorer.plan().price(long, 0)
    scorer.score([long])
    assert scorer.plan().price(request_of(calls()[1], scorer), 0) == before - 64


def test_a_context_within_the_original_one_has_one_table(checkpoint: Path, truth: Truth) -> None:
    scorer = Scorer(checkpoint, "cpu", "float32", 2_048, 0, max_context=ORIGINAL)
    assert scorer._rotations is None
    assert len(scorer.runner._decoder._ropes[0].cos) == ORIGINAL
    check(scorer, truth, calls()[:1])


def test_generation_ends_at_the_original_context(checkpoint: Path, checkpoints) -> None:
    assert read_facts(checkpoint).context_length == LONGEST
    assert generation_context(checkpoint, None) == ORIGINAL
    assert generation_context(checkpoint, 100) == ORIGINAL
    assert generation_context(checkpoint, 30) == 30
    with pytest.raises(ValueError, match="MAX_CONTEXT is 1000"):
        generation_context(checkpoint, 1_000)
    assert generation_context(checkpoints("qwen3")[0], None) is None
    config = build(checkpoint, "dense").cache_config
    assert (config.context_length, config.context_setting) == (ORIGINAL, "longrope's original context")


def request_of(call: Tokens, scorer: Scorer | None = None) -> ScoreRequest:
    prompt = call.prompt() if scorer is None else scorer.prompt(call.prompt())
    return ScoreRequest(prompt, np.array(LABELS, np.int32), SOFTMAX)
