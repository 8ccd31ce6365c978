"""Large batches in slices on one CUDA GPU: with small ones in between, each has the bits that it has alone."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from hiscore.batching.batched_model import LaunchedSlice
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.prefill.input_layout import StaticInputs
from hiscore.prefill.row_counts import SHORT_ROWS
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.results.pending_scores import PendingScores
from hiscore.scoring.scorer import Scorer
from tests.support.slices import in_turns, requests, scores
from tests.support.strategies import Tokens
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

BUDGET = 8_192
FAMILIES = ["qwen3", "gemma2", "gpt-oss", "cohere", "olmo3", "qwen3-moe"]
POISON = 0
"""A token that no call has."""


def scorer_of(checkpoints, family: str, dtype: str = "bfloat16", **settings) -> Scorer:
    return load_decoder_scorer(checkpoints(family)[0], "cuda", dtype, BUDGET, **settings)


def load(slices: int) -> tuple[list[Tokens], list[list[Tokens]]]:
    """A large batch in so many slices, and a small one behind each but the last; some have the same queries."""
    rng = np.random.default_rng(slices)

    def call(query: list[int], items: list[int]) -> Tokens:
        return Tokens(query, [(1 + rng.integers(0, VOCABULARY - 1, size)).tolist() for size in items])

    queries = [(1 + rng.integers(0, VOCABULARY - 1, size)).tolist() for size in (100, 64, 96)]
    rows = 2_300 * slices - 1_000
    large = [call(query, [50] * (rows // 150)) for query in queries]
    sizes = [[300, 200], [20, 1]][: slices - 1]
    return large, [[call(queries[index], items)] for index, items in enumerate(sizes)]


def alone(scorer: Scorer, batch: list[Tokens]) -> list[np.ndarray]:
    scorer.packing.cache.clear()
    return scores(scorer.submit(requests(batch)))


def equal(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "bfloat16") for family in FAMILIES),
        ("qwen3", "fp8"),
        ("qwen3", "float32"),
    ],
)
def test_every_batch_has_its_own_bits(family: str, dtype: str, checkpoints) -> None:
    """With graphs of the tail and without, and the same as when all layers are launched by the host."""
    scorer = scorer_of(checkpoints, family, dtype)
    loads = [load(slices) for slices in (2, 3)]
    batches = [batch for large, between in loads for batch in (large, *between)]
    expected = [alone(scorer, batch) for batch in batches]
    for graphs in ({}, scorer.runner._tails):
        graphs.clear()
        found = []
        for large, between in loads:
            scorer.packing.cache.clear()
            scores_of_large, others = in_turns(scorer, large, between)
            found += [scores_of_large, *others]
        assert all(map(equal, found, expected))
    scorer.runner._graphs.clear()
    assert all(map(equal, [alone(scorer, batch) for batch in batches], expected))


@pytest.mark.parametrize("apart", [True, False])
def test_without_inputs_of_their_own_small_ones_spoil_the_large(
    apart: bool, checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control has one set of buffers for all numbers of rows, and no guard."""
    if not apart:
        monkeypatch.setattr(CudaRunner, "_inputs_of", lambda self, layout: self._many_rows)
        monkeypatch.setattr(StaticInputs, "held", lambda self: nullcontext())
    scorer = scorer_of(checkpoints, "qwen3")
    large, between = load(3)
    expected = alone(scorer, large)
    scorer.packing.cache.clear()
    assert equal(in_turns(scorer, large, between)[0], expected) == apart


@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_slice_nothing_is_read_but_the_residual_stream(family: str, checkpoints) -> None:
    """Behind each slice all that graphs share is filled with NaN. The control: that stream, too."""
    scorer = scorer_of(checkpoints, family, query_cache_bytes=0)
    large, _ = load(3)
    expected = alone(scorer, large)
    for kept in (True, False):
        for launched in scorer.in_slices(requests(large)):
            if isinstance(launched, LaunchedSlice):
                fill_with_nan(scorer, kept)
        assert isinstance(launched, PendingScores)
        assert equal(scores(launched), expected) == kept


@torch.inference_mode()
def fill_with_nan(scorer: Scorer, restore: bool) -> None:
    """Compute the most rows of a token whose embedding is NaN, and restore the large batch's own memory."""
    runner, embedding = scorer.runner, scorer.runner._decoder.weights.embedding
    layout, inputs = runner._layouts[-1], runner._many_rows
    own = [inputs.buffer, inputs.context_slots, *runner._outputs.rows(0, SHORT_ROWS + layout.rows)]
    before, row = [each.clone() for each in own], embedding[POISON].clone()
    inputs.clear(layout)
    embedding[POISON] = float("nan")
    for graph, _ in runner._graphs[layout.rows]:
        graph.replay()
    embedding[POISON] = row
    for place, values in zip(own if restore else own[:2], before, strict=False):
        place.copy_(values)


def test_slices_are_launched_without_a_wait_and_each_ends_in_an_event(checkpoints) -> None:
    scorer = scorer_of(checkpoints, "qwen3")
    large, _ = load(3)
    alone(scorer, large)  # label rows are fetched once
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = list(scorer.in_slices(requests(large)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [each.left for each in launched[:-1]] == [2, 1]
    for each in launched[:-1]:
        each.wait()
    assert all(np.isfinite(each).all() for each in scores(launched[-1]))
