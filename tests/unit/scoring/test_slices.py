"""Small batches between the slices of a large one: each has the bits that it has alone, whatever is cached."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.prefill import row_counts
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.prefill.input_layout import StaticInputs
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.scorer import Scorer
from tests.support.cuda_runner import use_cuda_runner
from tests.support.scoring import use_runner
from tests.support.slices import SlicedTorchRunner, in_turns, requests, scores
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import VOCABULARY
from tests.support.under_load import scores_alone, scores_under_load

BUDGET = 512
FAMILIES = ["qwen3", "gemma2", "gpt-oss", "cohere", "glm4"]


def sliced(checkpoint, monkeypatch: pytest.MonkeyPatch, pages: int | None = None) -> Scorer:
    """A scorer of four layers, and slices of one each, whose pool holds garbage to begin with."""
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, max_context=128)
    runner = scorer.runner
    use_runner(scorer, SlicedTorchRunner(runner._decoder, runner.pool.shape[1]))
    scorer.runner.pool.fill_(float("nan"))
    if pages is not None:
        scorer.packing = replace(scorer.packing, cache=QueryCache(pages, pages))
    return scorer


class Load:
    """Queries of whole pages, some of which are cached; a large batch, and small ones that want the same pages."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)

        def call(query: list[int], items: list[int]) -> Tokens:
            return Tokens(query, random_tokens(rng, 0, items, VOCABULARY).items)

        known, new, other = (rng.integers(0, VOCABULARY, 2 * PAGE).tolist() for _ in range(3))
        self.before = [call(known, [3]), call(other, [4, 2])]
        self.large = [call(known, [20, 30]), call(known[:PAGE] + new, [25, 9]), call(new, [40, 1])]
        self.between = [
            [call(new, [5]), call(known, [7])],  # what the large one writes and what it reads
            [call(rng.integers(0, VOCABULARY, 2 * PAGE).tolist(), [6, 0])],  # wants pages of the pool
            [call(known[:PAGE] + new[: PAGE - 5], [4, 3])],
        ]


def alone(scorer: Scorer, before: list[Tokens], batch: list[Tokens]) -> list[np.ndarray]:
    """A batch's scores behind others, with nothing in between."""
    scorer.packing.cache.clear()
    if before:
        scorer.submit(requests(before))
    return scores(scorer.submit(requests(batch)))


@pytest.mark.parametrize("pages", first_of(None, 9, 6, 4))
@pytest.mark.parametrize("family", first_of(*FAMILIES, others=pytest.mark.slow))
def test_each_batch_has_its_bits(family: str, pages: int | None, checkpoints, monkeypatch) -> None:
    """In a pool that has room for all, and in ones where each wants the pages of the others."""
    scorer, load = sliced(checkpoints(family)[0], monkeypatch, pages), Load(0)
    scores(scorer.submit(requests(load.before)))
    large, between = in_turns(scorer, load.large, load.between)
    # What was launched whole before the large one's end is cached, and so is the large one.
    again = scores(scorer.submit(requests(load.large)))
    for found in (large, again):
        check(found, alone(scorer, load.before, load.large), exact=found is large)
    for batch, found in zip(load.between, between, strict=True):
        check(found, alone(scorer, load.before, batch), exact=pages is None)


def check(found: list[np.ndarray], expected: list[np.ndarray], exact: bool) -> None:
    """exact: where the same tokens were cached. Else a CPU's products have other numbers of rows."""
    for each, truth in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, truth, atol=0 if exact else 1e-5, rtol=0)


@pytest.mark.parametrize("pages", [None, 9, 6])
@pytest.mark.exhaustive
def test_control_without_a_hold_pages_are_read_too_early(pages: int | None, checkpoints, monkeypatch) -> None:
    monkeypatch.setattr(QueryCache, "held", lambda self: nullcontext())
    scorer, load = sliced(checkpoints("qwen3")[0], monkeypatch, pages), Load(0)
    scores(scorer.submit(requests(load.before)))
    large, between = in_turns(scorer, load.large, load.between)
    expected = [alone(scorer, load.before, batch) for batch in (load.large, *load.between)]
    with pytest.raises(AssertionError):
        check([*large, *chain(*between)], [*chain(*expected)], exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("pages", first_of(200, 12, 6))
@pytest.mark.parametrize("seed", first_of(*range(3)))
def test_under_load_scores_are_those_of_each_item_alone(
    seed: int, pages: int, checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the batcher: what runs between slices is never larger than it may be, whatever is cached."""
    scorer, rng = sliced(checkpoints("llama")[0], monkeypatch, pages), np.random.default_rng(seed)
    shared = [rng.integers(0, VOCABULARY, size).tolist() for size in (40, 64, 70)]
    shared.append(shared[1] + shared[0][:8])
    calls = []
    for index in range(50):
        items = rng.integers(0, 40, int(rng.choice([1, 2, 3, 12], p=[0.4, 0.3, 0.2, 0.1]))).tolist()
        call = random_tokens(rng, int(rng.integers(1, 60)), items, VOCABULARY)
        calls.append(Tokens(shared[index % 4], call.items) if index % 3 else call)
    options = ScoreOptions(apply_softmax=True)
    found, _ = scores_under_load(scorer, calls, options, BUDGET)
    assert scorer.runner.sliced > 3
    check(found, scores_alone(scorer, calls, options), exact=False)


@pytest.fixture
def on_cuda(checkpoints, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Scorer]:
    """Makes a scorer that launches as on CUDA: 128 rows at once, 256 in three slices."""

    def make() -> Scorer:
        # What a control takes for positions, when inputs are overwritten, is in the rotary tables, too.
        scorer = load_decoder_scorer(checkpoints("gemma2")[0], "cpu", "float32", 256, max_context=160)
        use_cuda_runner(scorer, monkeypatch, 256, in_slices=True)
        scorer.runner.pool.fill_(float("nan"))
        return scorer

    for name, rows in (("SHORT_ROWS", 128), ("START_ROWS", 0), ("SLICE_ROWS", 96)):
        monkeypatch.setattr(row_counts, name, rows)
    return make


CALLS = [
    random_tokens(np.random.default_rng(3), 40, items, VOCABULARY) for items in ([80, 70, 60], [3, 8], [20])
]


@pytest.mark.slow
def test_graphs_of_slices_give_the_same_bits(on_cuda: Callable[[], Scorer]) -> None:
    """With a graph of the tail and without."""
    scorer = on_cuda()
    large, *between = [[call] for call in CALLS]
    expected = [alone(scorer, [], batch) for batch in (large, *between)]
    assert [len(graphs) for graphs in scorer.runner._graphs.values()] == [3, 2, 1]
    # They leave no more rows than the plan of the memory counts.
    planned = row_counts.output_rows(256, in_slices=True)
    assert {len(rows) for rows in scorer.runner._outputs.rows(0, 2 * planned)} == {planned}
    for tails in ({}, scorer.runner._tails):
        tails.clear()
        scorer.packing.cache.clear()
        found, others = in_turns(scorer, large, between)
        for each, truth in zip((found, *others), expected, strict=True):
            check(each, truth, exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("guarded", first_of(True, False))
@pytest.mark.exhaustive
def test_control_with_the_same_inputs_for_all_a_forward_is_overwritten(
    guarded: bool, on_cuda: Callable[[], Scorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaRunner, "_inputs_of", lambda self, layout: self._many_rows)
    if not guarded:
        monkeypatch.setattr(StaticInputs, "held", lambda self: nullcontext())
    scorer = on_cuda()
    large, *between = [[call] for call in CALLS]
    expected = alone(scorer, [], large)
    scorer.packing.cache.clear()
    with pytest.raises(RuntimeError if guarded else AssertionError):
        check(in_turns(scorer, large, between)[0], expected, exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("taken", first_of(0, 1))
def test_a_batch_given_up_leaves_the_rest_as_it_was(taken: int, on_cuda: Callable[[], Scorer]) -> None:
    """Some of its slices are never launched: what it would have written is not found."""
    scorer = on_cuda()
    expected = alone(scorer, [], [CALLS[0]])
    scorer.packing.cache.clear()
    slices = scorer.in_slices(requests([CALLS[0]]))
    for _ in range(taken):
        next(slices)
    del slices
    scorer.runner.pool.fill_(float("nan"))
    assert not scorer.packing.cache.holds
    check(scores(scorer.submit(requests([CALLS[0]]))), expected, exact=True)
