"""The ablations' own parts: medians, idle shares, and variants of the scorer that must give its scores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.machine.gpu_idle import idle_share
from perf.machine.interleave import interleave, spread
from perf.scoring import ablation_variants as variants
from perf.scoring.ablation_groups import Arm, Group, groups
from perf.scoring.ablation_sizes import CPU
from perf.scoring.ablations import check
from perf.scoring.step_after_prefill import StepAfter, decode_step
from tests.support.tiny_models import VOCABULARY

LABELS = np.array([5, 77], np.int32)
DELIMITER = 499
# Float32 sums in another order; scores are probabilities.
TOLERANCE = 2e-5


def make_call(rng: np.random.Generator, query: int, items: list[int]) -> ScoreRequest:
    tokens = rng.integers(0, VOCABULARY - 1, query + sum(items)).astype(np.int32)
    return ScoreRequest(
        MultiItemPrompt(tokens, query, np.array(items)), LABELS, ScoreOptions(apply_softmax=True)
    )


@pytest.fixture(scope="module")
def scorer(checkpoints) -> Scorer:
    return Scorer(checkpoints("qwen3")[0], "cpu", "float32", 1_024, query_cache_bytes=0)


@pytest.fixture
def calls() -> list[ScoreRequest]:
    rng = np.random.default_rng(0)
    return [make_call(rng, 21, [7, 3, 0, 11]), make_call(rng, 5, [4]), make_call(rng, 0, [6, 2])]


def scores(pending) -> np.ndarray:
    return np.concatenate([answer.scores for answer in pending.result()[0]])


@pytest.mark.parametrize("count", [6, 7, 9, 15])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    """95% of 1,000 less 2.9 standard deviations are 930; an interval one value narrower holds 88% at most."""
    samples = np.sort(np.random.default_rng(count).exponential(1.0, (1_000, count)), axis=1)
    held = narrower = 0
    for ordered in samples.tolist():
        found = spread(ordered)
        held += found.low <= np.log(2) <= found.high
        narrower += (
            ordered[ordered.index(found.low) + 1] <= np.log(2) <= ordered[ordered.index(found.high) - 1]
        )
    assert narrower < 930 <= held


def test_arms_take_turns_and_a_ratio_is_taken_within_a_round() -> None:
    order: list[str] = []
    clock = iter(range(1, 100))

    def arm(name: str, factor: float):
        def run() -> float:
            order.append(name)
            return factor * 2.0 ** ((next(clock) - 1) // 2)  # the machine slows down from round to round

        return run

    found = interleave({"a": arm("a", 1.0), "b": arm("b", 3.0)}, 4)
    assert "".join(order) == "abbaabba"
    assert (found["b"].ratio.median, found["b"].ratio.low, found["b"].ratio.high) == (3, 3, 3)
    assert found["a"].value.median == 3  # of 1, 2, 4, 8
    assert found["a"].ratio.median == 1


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), min_size=1, max_size=12), st.integers(0, 5)
)
def test_idle_share_counts_what_no_kernel_covers(drawn: list[tuple[int, int]], long_gap: int) -> None:
    intervals = [(float(begin), float(begin + length)) for begin, length in drawn]
    first, last = int(min(b for b, _ in intervals)), int(max(e for _, e in intervals))
    idle = [not any(b <= t < e for b, e in intervals) for t in range(first, last)]
    runs = "".join("_" if free else "#" for free in idle).split("#")
    found = idle_share(intervals, long_gap)
    assert found.any_gap == pytest.approx(sum(idle) / (last - first))
    assert found.long_gaps == pytest.approx(sum(len(r) for r in runs if len(r) > long_gap) / (last - first))
    assert found.span_ms == pytest.approx((last - first) / 1e3)


def test_variants_give_the_scorers_scores(scorer: Scorer, calls: list[ScoreRequest]) -> None:
    expected = scores(scorer.submit(calls))
    assert np.abs(expected - np.roll(expected, 1, axis=0)).max() > 0.1  # a wrong row would show
    whole = variants.with_whole_vocabulary(scorer)
    np.testing.assert_allclose(scores(whole.submit(calls)), expected, atol=TOLERANCE, rtol=0)
    for sampled in (False, True):
        stepping = variants.with_decode_step(scorer, sampled)
        np.testing.assert_allclose(scores(stepping.submit(calls)), expected, atol=TOLERANCE, rtol=0)
    singles = [single for call in calls for single in variants.as_single_items(call)]
    np.testing.assert_allclose(scores(scorer.submit(singles)), expected, atol=TOLERANCE, rtol=0)


def test_delimiters_are_found_where_they_were_laid_out(scorer: Scorer, calls: list[ScoreRequest]) -> None:
    marked = [variants.mark(call, DELIMITER) for call in calls]
    expected = scores(scorer.submit(calls))
    np.testing.assert_array_equal(scores(variants.submit_indexed(scorer, marked)), expected)
    np.testing.assert_array_equal(scores(variants.submit_searching(scorer, marked, DELIMITER)), expected)
    # A call whose own token looks like a delimiter would be cut in the wrong place: it is refused.
    calls[0].prompt.tokens[3] = DELIMITER
    with pytest.raises(ValueError, match="499"):
        variants.mark(calls[0], DELIMITER)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_decode_step_computes_what_a_longer_prompt_would(
    scorer: Scorer, calls: list[ScoreRequest], sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[np.ndarray] = []

    def spying(forward, tokens):
        fed.append(tokens)
        return decode_step(forward, tokens)

    monkeypatch.setattr("perf.scoring.step_after_prefill.decode_step", spying)
    stepping = variants.with_decode_step(scorer, sampled)
    stepping.submit(calls).result()
    runner = stepping.runner
    assert isinstance(runner, StepAfter)
    assert runner.stepped is not None
    found = scorer._head.label_logits(runner.stepped, LABELS).numpy()
    singles = [single for call in calls for single in variants.as_single_items(call)]

    def after(tokens: np.ndarray) -> np.ndarray:
        """Label logits of every item's prompt with one token more."""
        longer = [
            np.append(single.prompt.tokens, token) for single, token in zip(singles, tokens, strict=True)
        ]
        prompts = [MultiItemPrompt(ids.astype(np.int32), len(ids), np.array([0])) for ids in longer]
        answers = scores(
            scorer.submit([ScoreRequest(p, LABELS, ScoreOptions(apply_softmax=True)) for p in prompts])
        )
        return np.log(answers[:, 0] / answers[:, 1])

    np.testing.assert_allclose(found[:, 0] - found[:, 1], after(fed[0]), atol=1e-3, rtol=1e-3)
    assert np.abs(after(fed[0]) - after(np.roll(fed[0], 1))).max() > 0.1


def test_a_decode_step_refuses_a_pool_that_is_in_use(checkpoints, calls: list[ScoreRequest]) -> None:
    caching = Scorer(checkpoints("qwen3")[0], "cpu", "float32", 1_024, query_cache_bytes=2**20)
    with pytest.raises(ValueError, match="query cache"):
        variants.with_decode_step(caching, sampled=False)
    cut = Scorer(checkpoints("qwen3")[0], "cpu", "float32", 16, query_cache_bytes=0)
    with pytest.raises(ValueError, match="uses the pool"):
        variants.with_decode_step(cut, sampled=False).submit(calls)


def test_the_check_of_a_group_sees_a_wrong_arm(checkpoints, scorer: Scorer, tmp_path: Path) -> None:
    caching = Scorer(checkpoints("qwen3")[0], "cpu", "float32", CPU.budget, CPU.cache_bytes)
    found = {group.name: group for group in groups(scorer, caching, CPU)}
    packed = found["multi-item, alone"]
    assert check(packed, TOLERANCE) <= TOLERANCE

    def shuffled(batch: list[ScoreRequest]):
        pending = scorer.submit(batch)
        answers, stats = pending.result()
        answers[0].scores[:] = np.roll(answers[0].scores, 1, axis=0)
        pending.result = lambda: (answers, stats)  # type: ignore[method-assign]
        return pending

    wrong = Group("wrong", "", packed.batches, {"right": Arm(scorer.submit), "wrong": Arm(shuffled)})
    with pytest.raises(SystemExit, match="'wrong' gives other scores"):
        check(wrong, TOLERANCE)
    cache = found["query cache, alone"]
    caching.submit(cache.batches[0]).result()
    check(cache, TOLERANCE)
    unserved = Group("unserved", "", packed.batches, {"cached": Arm(scorer.submit, cached=True)})
    with pytest.raises(SystemExit, match="query cache"):
        check(unserved, TOLERANCE)
