"""Prompts on both sides of longrope's original context, against transformers, one item at a time, in float32."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hiscore.models.facts import generation_context, read_facts
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.requests.query_key import QueryKey
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.decoding import build
from tests.support.longrope import LONGEST, ORIGINAL, both_sides, make_longrope
from tests.support.scoring import LABELS, SOFTMAX, score
from tests.support.strategies import Tokens
from tests.support.truth import Truth

# What the contract allows between float32 implementations that add in different orders.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_longrope(tmp_path_factory.mktemp("longrope"))


@pytest.fixture(scope="module")
def truth(checkpoint: Path) -> Truth:
    return Truth(checkpoint)


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
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", budget, cache_bytes)
    assert scorer.facts.context_length == LONGEST
    for call in both_sides():
        check(scorer, truth, [call])
        check(scorer, truth, [call])
    check(scorer, truth, both_sides())


@pytest.mark.parametrize("inside", [ORIGINAL, 40])
def test_an_older_name_means_the_same_original_context(inside: int, tmp_path: Path) -> None:
    """transformers takes the original context that stands beside rope_parameters, whatever they say."""
    checkpoint = make_longrope(tmp_path, rope_type="su", original_max_position_embeddings=inside)
    check(load_decoder_scorer(checkpoint, "cpu", "float32", 2_048), Truth(checkpoint), both_sides())


@pytest.mark.exhaustive
def test_a_graph_has_its_own_angles(checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: rows are copied into place, and graphs replayed."""
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from tests.support.cuda_runner import use_cuda_runner

    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 256)
    use_cuda_runner(scorer, monkeypatch, 256)
    check(scorer, truth, both_sides())


@pytest.mark.parametrize("rotated", ["all as if short", "all as if long"])
def test_control_one_table_for_all_fails(
    rotated: str, checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 2_048, 0)
    wrong = LongropeTables(10 * LONGEST if rotated == "all as if short" else -1, LONGEST)
    monkeypatch.setattr(scorer, "packing", replace(scorer.packing, longrope=wrong))
    with pytest.raises(AssertionError):
        check(scorer, truth, both_sides())


def test_control_other_tables_fail(checkpoint: Path, truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that was cached behind short items, taken for long ones."""
    of = QueryKey.of
    monkeypatch.setattr(QueryKey, "of", lambda tokens, salt=b"": of(tokens))
    short, long, *_ = both_sides()
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    check(scorer, truth, [short])
    with pytest.raises(AssertionError):
        check(scorer, truth, [long])


def test_a_query_counts_as_cached_where_all_its_items_found_it(checkpoint: Path) -> None:
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    query, (short, long) = both_sides()[0].query, ([5, 6], [7] * 20)

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
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 2_048, 2**22)
    long = request_of(both_sides()[1], scorer)
    before = scorer.packing.plan().price(long, 0)
    scorer.score([long])
    assert scorer.packing.plan().price(request_of(both_sides()[1], scorer), 0) == before - 64


def test_a_context_within_the_original_one_has_one_table(checkpoint: Path, truth: Truth) -> None:
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 2_048, 0, max_context=ORIGINAL)
    assert scorer.packing.longrope is None
    assert len(scorer.runner._decoder._ropes[0].cos) == ORIGINAL
    check(scorer, truth, both_sides()[:1])


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
    prompt = call.prompt() if scorer is None else scorer.packing.prompt(call.prompt())
    return ScoreRequest(prompt, np.array(LABELS, np.int32), SOFTMAX)
