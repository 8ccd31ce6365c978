"""What sampling is planned with, against what it allocates."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from hiscore.decoding.interface.sampling_batch import History, Penalties, SamplingBatch
from hiscore.decoding.memory.model_sizes import CANDIDATE_BYTES, sampling_bytes
from hiscore.decoding.worker.token_sampler import TokenSampler

CPU = torch.device("cpu")
VOCABULARY = 20_000


def batch(rows: int, draws: bool, reports: bool, penalises: bool) -> SamplingBatch:
    """Everything that takes memory; what comes first also makes room for counts."""
    ones = np.ones(rows, np.float32)
    histories = tuple(History(row, np.array([1], np.int32), np.array([2], np.int32)) for row in range(rows))
    return SamplingBatch(
        ones * draws,
        np.full(rows, 50, np.int32),
        ones * 0.9,
        np.full(rows, 0.5),
        ones * 0.1,
        penalties=Penalties(np.arange(rows), ones * 2, ones, ones, histories) if penalises else None,
        logprobs=np.full(rows, 20 if reports else -1, np.int32),
    )


def peak_bytes(compute: Callable[[], Any]) -> int:
    """The most bytes that are allocated at once, inside of operations too; what is returned is held to the end."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        held = compute()
    del held
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def measured(rows: int, logits: int, draws: bool, reports: bool = True, penalises: bool = True) -> int:
    """With so many tensors of logits beside."""

    def sample() -> Any:
        alive = [torch.zeros(rows, VOCABULARY) for _ in range(logits)]
        sampler, sampling = TokenSampler(rows, CPU), batch(rows, draws, reports, penalises)
        return alive, sampler, sampler.sample(alive[0], np.arange(rows, dtype=np.int32), sampling)

    return peak_bytes(sample)


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_on_a_cpu_sampling_takes_what_is_planned(rows: int) -> None:
    planned = sampling_bytes(rows, VOCABULARY, on_cuda=False)
    assert 0.8 * planned < measured(rows, 1, draws=True) <= planned
    # Control: it is the draw that takes most.
    assert measured(rows, 1, draws=False) < 0.6 * planned


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_beside_kernels_that_draw_it_takes_what_is_planned(rows: int) -> None:
    """What they do not do is the same on every device. Logits: of a graph, of all graphs, of prompts."""
    # A graph's candidates are left out; those of prompts are as good as nothing.
    planned = sampling_bytes(rows, VOCABULARY, on_cuda=True) - rows * CANDIDATE_BYTES
    found = partial(measured, rows, 3, draws=False)
    assert 0.9 * planned < found() <= planned
    # Controls: both parts of it count, each where it takes most.
    less = found(penalises=False) if rows == 1 else found(reports=False)
    assert less < 0.9 * planned


class Unlaunched:
    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **keywords: None


@pytest.mark.parametrize("vocabulary", [49_152, 2**18])
@pytest.mark.parametrize("rows", [1, 64])
def test_kernels_take_what_is_planned(rows: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from hiscore.decoding.worker import triton_sampler

    for kernel in ("penalise_and_find_maxima", "draw_tokens"):
        monkeypatch.setattr(triton_sampler, kernel, Unlaunched())
    for kernel in ("count_weights", "find_range", "narrow_range", "list_candidates"):
        monkeypatch.setattr(triton_sampler.candidates, kernel, Unlaunched())
    logits, row_options = torch.empty(rows, vocabulary), torch.zeros(10, rows, dtype=torch.float64)
    taken = peak_bytes(lambda: triton_sampler.draw(logits, row_options))
    assert 0.5 < taken / (rows * CANDIDATE_BYTES) <= 1
    # Control: a list of twice as many candidates would not fit.
    more = peak_bytes(lambda: triton_sampler.draw(logits, row_options, listed=2 * triton_sampler.LISTED))
    assert more > rows * CANDIDATE_BYTES
