"""The scorer on one CUDA GPU against transformers in float32, one item at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.recurrence.metadata import CHUNK
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from tests.support.longrope import both_sides, make_longrope
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import ON_GPU, RECURRENT, VOCABULARY, WITHOUT_CLASSIFIER
from tests.support.truth import Truth

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

BATCH = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (1, [0, 0, 5]), (90, [31, 64, 2]), (6, [])]


@pytest.mark.parametrize(
    ("family", "labels"),
    [
        *((family, None) for family in ON_GPU),
        *((family, 3) for family in ON_GPU if family not in WITHOUT_CLASSIFIER),
    ],
)
def test_float32_equals_transformers(family: str, labels: int | None, checkpoints) -> None:
    """Kernels in full float32: the same bound as on the CPU."""
    checkpoint, truth = checkpoints(family, labels)
    # A norm enlarges small heads of a gated delta net: transformers in float64 differs from its float32 by 1.3e-4.
    bound = 3e-4 if labels and family in RECURRENT else 1e-4
    calls = [random_tokens(np.random.default_rng(0), q, items, VOCABULARY) for q, items in BATCH]
    for budget in (1_024, 64):
        scorer = load_decoder_scorer(checkpoint, "cuda", "float32", budget)
        for options in (ScoreOptions(), ScoreOptions(apply_softmax=True)):
            for call, found in zip(calls, score(scorer, calls, options), strict=True):
                if call.items:
                    ids = [] if labels else LABELS
                    expected = truth.scores(call.query, call.items, ids, options.apply_softmax)
                    np.testing.assert_allclose(found, expected, atol=bound, rtol=0)


@pytest.mark.parametrize("budget", [2_048, 128])
def test_longrope_chooses_for_each_item(budget: int, tmp_path: Path) -> None:
    checkpoint = make_longrope(tmp_path)
    scorer, truth = load_decoder_scorer(checkpoint, "cuda", "float32", budget), Truth(checkpoint)
    batch, options = both_sides(), ScoreOptions(apply_softmax=True)
    for _ in range(2):
        for call, found in zip(batch, score(scorer, batch, options), strict=True):
            expected = truth.scores(call.query, call.items, LABELS, apply_softmax=True)
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ON_GPU)
@pytest.mark.parametrize("items", [3, 150, 400, 600])
def test_the_tail_has_the_same_bits_with_and_without_a_graph(family: str, items: int, checkpoints) -> None:
    """Below `MIN_ROWS`, within the graphs, and with more rows than any of them."""
    scorer = load_decoder_scorer(checkpoints(family)[0], "cuda", "bfloat16", 1_024, query_cache_bytes=0)
    call = random_tokens(np.random.default_rng(7), 20, [3] * items, VOCABULARY)
    found = score(scorer, [call], ScoreOptions(apply_softmax=True))[0]
    scorer.runner._tails.clear()
    np.testing.assert_array_equal(score(scorer, [call], ScoreOptions(apply_softmax=True))[0], found)


def test_padding_rows_reach_nothing(checkpoints) -> None:
    """Garbage of an earlier, larger batch is where the padding is; the scores are not affected."""
    scorer = load_decoder_scorer(checkpoints("qwen3")[0], "cuda", "bfloat16", 1_024, query_cache_bytes=0)
    options = ScoreOptions(apply_softmax=True)
    call = random_tokens(np.random.default_rng(1), 13, [5, 9], VOCABULARY)
    first = score(scorer, [call], options)[0]
    scorer.runner.pool.fill_(float("nan"))
    scorer.runner._few_rows.buffer.random_(0, 400)
    np.testing.assert_array_equal(score(scorer, [call], options)[0], first)


def test_a_batch_is_launched_without_a_wait_and_ends_in_one_event(checkpoints, monkeypatch) -> None:
    """No synchronising call between packing and the answer but the wait for one event."""
    scorer = load_decoder_scorer(checkpoints("qwen3")[0], "cuda", "bfloat16", 1_024)
    rng = np.random.default_rng(2)
    options = ScoreOptions(apply_softmax=True)

    def calls() -> list[ScoreRequest]:
        found = [random_tokens(rng, q, items, VOCABULARY) for q, items in BATCH]
        return [ScoreRequest(call.prompt(), np.array(LABELS, np.int32), options) for call in found]

    scorer.submit(calls()).result()  # label rows are fetched once
    records, waits = [], []
    record, wait = torch.cuda.Event.record, torch.cuda.Event.synchronize
    monkeypatch.setattr(torch.cuda.Event, "record", lambda self, *a: (records.append(self), record(self, *a)))
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: (waits.append(self), wait(self)))
    batches = [calls() for _ in range(4)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [scorer.submit(batch) for batch in batches]
        with pytest.raises(RuntimeError, match="synchroniz"):  # the control: the mode does notice
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (len(records), len(waits)) == (4, 0)
    for each in pending:
        answers, _ = each.result()
        assert all(np.isfinite(answer.scores).all() for answer in answers)
    assert records == waits


@pytest.mark.parametrize(
    ("family", "dtype", "bound"),
    [
        # Products of other dimensions may add up in another order; in bfloat16 that is the contract's 5e-3.
        *[(family, "float32", 2e-5) for family in ON_GPU],
        ("llama", "bfloat16", 5e-3),
    ],
)
def test_cache_hits_change_no_score_and_freed_pages_are_never_read(
    family: str, dtype: str, bound: float, checkpoints
) -> None:
    scorer = load_decoder_scorer(checkpoints(family)[0], "cuda", dtype, 1_024)
    call = random_tokens(np.random.default_rng(5), 100, [4, 9, 0, 30], VOCABULARY)
    options = ScoreOptions(apply_softmax=True)
    labels = np.array(LABELS, np.int32)
    (first,), _ = scorer.score([ScoreRequest(call.prompt(), labels, options)])
    (second,), _ = scorer.score([ScoreRequest(call.prompt(), labels, options)])
    # A state is kept at a chunk's end, keys and values at a page's.
    assert (first.cached_tokens, second.cached_tokens) == (0, CHUNK if family in RECURRENT else 96)
    np.testing.assert_allclose(second.scores, first.scores, atol=bound, rtol=0)
    scorer.runner.pool.fill_(float("nan"))
    (poisoned,), _ = scorer.score([ScoreRequest(call.prompt(), labels, options)])
    assert not hasattr(poisoned, "scores")  # the control: what the pool holds is read
    scorer.packing.cache.clear()
    (fresh,), _ = scorer.score([ScoreRequest(call.prompt(), labels, options)])
    np.testing.assert_array_equal(fresh.scores, first.scores)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [each for each in RECURRENT if each in ON_GPU])
def test_states_are_handed_on_with_the_bits_of_a_call_alone(family: str, dtype: str, checkpoints) -> None:
    """From queries to items, over forwards and over batches."""
    checkpoint, _ = checkpoints(family)
    scorer = load_decoder_scorer(checkpoint, "cuda", dtype, 256)
    alone = load_decoder_scorer(checkpoint, "cuda", dtype, 4_096, query_cache_bytes=0)
    rng, options = np.random.default_rng(8), ScoreOptions(apply_softmax=True)
    shapes = [(130, [150, 3, 1, 0, 70]), (200, [5, 9]), (0, [200, 5]), (1, [1, 1]), (64, [64, 65])]
    calls = [random_tokens(rng, query, items, VOCABULARY) for query, items in shapes]
    for _ in range(2):
        for call, found in zip(calls, score(scorer, calls, options), strict=True):
            # Products in float32 may add up in another order; 2.6e-5 was seen.
            bound = 1e-4 if dtype == "float32" else 0
            np.testing.assert_allclose(found, score(alone, [call], options)[0], atol=bound, rtol=0)
