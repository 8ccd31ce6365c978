"""What a worker launches and in which order, on a device that only records its calls."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import NO_PAGES, NOT_FINITE, Admission, DecodeBatch, PrefillChunk
from hiscore.decoding.worker import worker as worker_module
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.offload_schedule import Event, OffloadSchedule
from hiscore.decoding.worker.step_runner import COUNTERS, Attends, StepOutputs, new_input_ids
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import greedy

VOCABULARY = 5


def at(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Recorder:
    """Queues, model, runner and cache operations; `log` has all calls but queries."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.done: set[int] = set()
        self.events = count()
        counts = torch.zeros(1, dtype=torch.int64)
        self.cache: Any = SimpleNamespace(
            hits=counts,
            misses=counts.clone(),
            mass=torch.zeros(2, dtype=torch.float64),
            sparse={0: 0},
            shape=SimpleNamespace(windowed=frozenset()),
        )
        self.staging = torch.zeros(0)
        self.ops: Any = self
        self.input_ids = new_input_ids(4, torch.device("cpu"))
        self.logits = torch.eye(VOCABULARY)
        self.counts: Any = None
        self.states = None

    def use(self, queue: Queue) -> "Recorder":
        self.log.append(("use", queue.value))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.log.append(("end",))

    def record(self, queue: Queue) -> Event:
        event = next(self.events)
        self.log.append(("record", event, queue.value))
        return event

    def wait(self, queue: Queue, event: Event) -> None:
        self.log.append(("wait", event, queue.value))

    def completed(self, event: Event) -> bool:
        return event in self.done

    def prefill(self, chunks: list[PrefillChunk]) -> Tensor:
        self.log.append(("prefill", *((chunk.start, chunk.end) for chunk in chunks)))
        return self.logits[: sum(chunk.is_last for chunk in chunks)]

    def forward(
        self, seq_indices: np.ndarray, positions: np.ndarray, attends: Attends, sampling: SamplingBatch
    ) -> StepOutputs:
        self.log.append(("forward", seq_indices.tolist(), positions.tolist(), attends))
        readback = torch.arange(COUNTERS + len(seq_indices))
        slots = torch.from_numpy(positions), torch.from_numpy(positions + 100)
        return StepOutputs(self.logits[: len(seq_indices)], *slots, readback, sampling.is_greedy)

    def offload_step(self, *slots: Tensor) -> None:
        self.log.append(("copy", *(each.tolist() for each in slots)))

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self.log.append(("copy prompt", slots.tolist(), host_pages.tolist()))

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self.log.append(("restore", slots.tolist(), host_pages.tolist()))

    def restore_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        self.log.append(("restore dense", slots.tolist(), host_slots.tolist()))

    def take(self) -> list[tuple[Any, ...]]:
        log, self.log = self.log, []
        return log


def recorded(host_is_shared: bool = False, follows: bool = False) -> tuple[Recorder, CacheWorker]:
    sizes = dict.fromkeys(("lru_pages", "ring_pages", "host_pages", "device_pages"), 0)
    config = CacheConfig(
        page_size=4, **sizes, staging_pages=8, max_sequences=4, prefill_token_budget=0, context_length=0,
        host_is_shared=host_is_shared,
    )  # fmt: skip
    device: Any = Recorder()
    return device, CacheWorker(device, device, device, OffloadSchedule(2, 4, 8), config, follows)


def step(worker: CacheWorker, position: int) -> None:
    worker.step(DecodeBatch(at(1), at(position), greedy(1)))


def restore(worker: CacheWorker, seq_index: int = 1) -> None:
    device: Recorder = worker._queues  # type: ignore[assignment]
    worker.restore(seq_index, 3, at(5), at(2))
    device.done.add(worker._restores._in_flight[seq_index])
    assert worker.drained(seq_index)
    device.done.clear()
    device.take()


def test_a_restore_runs_beside_forwards_and_what_reads_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    device, worker = recorded()
    worker.restore(1, 3, at(5), at(2))
    assert device.take() == [
        ("record", 0, "compute"), ("wait", 0, "restore"),
        ("use", "restore"), ("restore", [32, 33, 34], [5]), ("end",), ("record", 1, "restore"),
    ]  # fmt: skip
    for what in ("fill_from_staging", "index_from_staging"):
        monkeypatch.setattr(worker_module, what, lambda *_: device.log.append(("admit",)))
    worker.admit(Admission(1, 3, at(5), at(2), at(2), False, first_token=7))
    assert device.take() == [("wait", 1, "compute"), ("use", "compute"), ("admit",), ("end",)]
    with pytest.raises(RuntimeError, match="sequence 1 has copies in flight"):
        worker.release(1, NO_PAGES, NO_PAGES)
    device.done = {1}
    assert worker.drained(1)
    worker.admit(Admission(1, 3, at(5), at(2), at(2), False, first_token=7))
    assert device.take() == [("use", "compute"), ("admit",), ("end",)]


def test_where_ranks_share_the_host_pool_a_restore_is_between_forwards() -> None:
    """They exchange what they read there, in the order of their COMPUTE queues."""
    device, worker = recorded(host_is_shared=True)
    worker.restore(1, 3, at(5), at(2))
    assert [call for call in device.take() if call[0] == "use"] == [("use", "compute")]


def test_a_prefix_whose_second_copy_fails_to_launch_is_drained_when_the_first_has_landed() -> None:
    device, worker = recorded()

    def no_memory(*_: Tensor) -> None:
        raise MemoryError

    device.restore_index = no_memory  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        worker.fetch(Prefix(1, 4, at(5), at(5), at(2), np.zeros(1, bool)))
    assert device.take() == [
        ("record", 0, "compute"), ("wait", 0, "restore"),
        ("use", "restore"), ("restore", [32, 33, 34, 35], [5]), ("end",), ("record", 1, "restore"),
    ]  # fmt: skip
    assert not worker.drained(1)
    with pytest.raises(RuntimeError, match="sequence 1 has copies in flight"):
        worker.release(1, NO_PAGES, NO_PAGES)
    device.done = {1}
    worker.release(1, NO_PAGES, NO_PAGES)


@pytest.mark.parametrize("there", [[False, False], [False, True], [True, True]])
def test_only_what_is_not_on_the_device_is_copied_from_the_host(there: list[bool]) -> None:
    """Dense layers of the rest are copied between forwards, from where the host pages of the sequence say."""
    device, worker = recorded()
    device.restore_index = lambda *_: None  # type: ignore[attr-defined]
    worker.fetch(Prefix(1, 8, at(5, 3), at(5, 3), at(2), np.array(there)))
    log = device.take()
    restored = [entry[1:] for entry in log if entry[0] == "restore"]
    dense = [entry[1:] for entry in log if entry[0] == "restore dense"]
    first, second = [32, 33, 34, 35], [36, 37, 38, 39]
    if there == [False, True]:
        assert (restored, dense) == ([(first, [5])], [(second, [12, 13, 14, 15])])
    elif there == [True, True]:
        assert (restored, dense) == ([], [(first + second, [20, 21, 22, 23, 12, 13, 14, 15])])
    else:
        assert (restored, dense) == ([(first + second, [5, 3])], [])
    assert [entry[1] for entry in log if entry[0] == "use"] == ["restore"] * (not all(there)) + [
        "compute"
    ] * any(there)
    assert worker.drained(1) == all(there)


def test_a_step_under_ring_copies_beside_the_next_and_waits_for_the_copy_a_ring_before() -> None:
    device, worker = recorded()
    restore(worker)

    def step_log(position: int, event: int) -> list[tuple[Any, ...]]:
        return [
            ("use", "compute"), ("forward", [1], [position], Attends.SELECTED), ("end",),
            ("record", event, "compute"), ("wait", event, "offload"),
            ("use", "offload"), ("copy", [position], [position + 100]), ("end",),
            ("record", event + 1, "offload"),
        ]  # fmt: skip

    step(worker, 3)
    assert device.take() == step_log(3, 2)
    step(worker, 4)
    assert device.take() == step_log(4, 4)
    step(worker, 5)
    assert device.take() == [("wait", 3, "compute"), *step_log(5, 6)]
    assert not worker.drained(1)
    device.done = {3, 5}
    step(worker, 6)  # the copies of 3 and 4 have completed: no wait
    assert device.take() == step_log(6, 8)
    assert worker._schedule.offloaded_tokens == 2
    device.done = {7, 9}
    assert worker.drained(1)
    assert device.take() == []


def chunk(start: int, tokens: int, is_last: bool = False, host: np.ndarray | None = None) -> PrefillChunk:
    staging, pages = at(3, 1, 6), at(10, 11, 12, 13, 14, 15, 16, 17, 18, 19) if host is None else host
    return PrefillChunk(1, np.zeros(tokens, np.int32), start, staging, pages, is_last)


def copies(log: list[tuple[Any, ...]]) -> list[tuple[list[int], list[int]]]:
    return [call[1:] for call in log if call[0] == "copy prompt"]


def test_a_prompt_is_offloaded_by_whole_pages_and_to_its_end() -> None:
    """Of 4 tokens each, out of staging pages of 16: 3, 1 and 6."""
    device, worker = recorded()
    staged = [*range(48, 64), *range(16, 32), *range(96, 112)]
    pages = list(range(10, 20))
    expected = []
    for start, tokens, first, end in ((0, 3, 0, 0), (3, 3, 0, 4), (6, 14, 4, 20), (20, 4, 20, 24)):
        worker.prefill([chunk(start, tokens)], greedy(0))
        if end > first:
            expected.append((staged[first:end], pages[first // 4 :]))
    assert copies(device.log) == expected
    device.take()
    worker.prefill([chunk(24, 2, is_last=True)], greedy(1))
    assert copies(device.log) == [(staged[24:26], pages[6:])]
    assert worker._schedule.lag().tolist() == [0, 26, 0, 0]
    device.take()
    worker.prefill([chunk(0, 5, is_last=True, host=NO_PAGES)], greedy(1))
    assert copies(device.log) == []


def test_a_prefill_waits_for_the_copies_of_the_staging_pages_that_it_begins() -> None:
    device, worker = recorded()
    worker.prefill([chunk(0, 20)], greedy(0))  # staging pages 3 and 1, the latter in part
    worker.prefill([chunk(20, 20)], greedy(0))
    assert [call for call in device.take() if call[0] == "wait" and call[2] == "compute"] == []
    done = worker._schedule._copies[-1].done
    # Another prompt begins in pages 1 and 7: the last copy that read page 1 is the second.
    worker.prefill([PrefillChunk(2, np.zeros(17, np.int32), 0, at(7, 1), NO_PAGES, False)], greedy(0))
    assert device.take()[0] == ("wait", done, "compute")
    device.take()
    worker.restore(3, 16, at(30), at(6))
    assert [
        call for call in device.take() if call[0] == "wait" and call[2] == "compute"
    ] == []  # has been waited for


@pytest.mark.parametrize("follows", [False, True])
def test_ranks_but_the_first_find_a_prefix_behind_their_own_copies(follows: bool) -> None:
    device, worker = recorded(follows=follows)
    worker.prefill([chunk(0, 20)], greedy(0))
    done = worker._schedule._copies[-1].done
    device.take()
    device.restore_index = lambda *_: None  # type: ignore[attr-defined]
    worker.fetch(Prefix(2, 4, at(5), at(5), at(6), np.zeros(1, bool)))
    assert (("wait", done, "compute") in device.take()) == follows


def test_some_attend_to_everything() -> None:
    """None of a step's sequences, some of them, or all; and all where nothing selects."""
    device, worker = recorded()
    worker._full_attention[2] = True
    for seq_index in (1, 2):
        restore(worker, seq_index)
    seen = []
    for indices in (at(1), at(1, 2), at(2), at(1)):
        if len(seen) == 3:
            device.cache.sparse = {}
        positions = np.array([worker._schedule._written[i] + 1 for i in indices], np.int32)
        worker.step(DecodeBatch(indices, positions, greedy(len(indices))))
        seen.append(next(call[3] for call in device.take() if call[0] == "forward"))
    assert seen == [Attends.SELECTED, Attends.MIXED, Attends.FULL, Attends.FULL]


def test_greedy_tokens_of_a_step_are_read_as_they_are_and_sampled_ones_are_fed() -> None:
    device, worker = recorded()
    restore(worker)
    result = worker.step(DecodeBatch(at(1), at(3), greedy(1))).result()
    assert result.tokens.tolist() == [COUNTERS]
    assert device.input_ids.tolist() == [0] * 5
    device.logits = torch.full((1, VOCABULARY), -1e9)
    device.logits[0, 3] = 0.0
    sampling = SamplingBatch(np.ones(1, np.float32), at(0), np.ones(1, np.float32), np.array([0.5]))
    result = worker.step(DecodeBatch(at(1), at(4), sampling)).result()
    assert result.tokens.tolist() == [3]
    assert device.input_ids.tolist() == [0, 3, 0, 0, 0]
    device.logits = torch.full((1, VOCABULARY), torch.nan)
    result = worker.step(DecodeBatch(at(1), at(5), sampling)).result()
    assert result.tokens.tolist() == [NOT_FINITE]


def test_a_prefills_tokens_are_fed_to_the_sequences_whose_prompts_end() -> None:
    device, worker = recorded()
    chunks = [
        PrefillChunk(i, np.zeros(2, np.int32), 0, at(i), NO_PAGES, last)
        for i, last in ((0, True), (1, False), (3, True))
    ]
    result = worker.prefill(chunks, greedy(2)).result()
    assert result.tokens.tolist() == [0, 1]
    assert device.input_ids.tolist() == [0, 0, 0, 1, 0]


def test_a_result_has_what_was_counted_since_the_last() -> None:
    device, worker = recorded()
    mass = torch.tensor([1.5, 4.0], dtype=torch.float64).view(torch.int64)
    first = worker.read(torch.cat((torch.tensor([5, 2]), mass, torch.tensor([7, 8, 9]))), 2, 0.25)
    assert first.tokens.tolist() == [7, 8]
    assert (first.hits, first.misses, first.seconds) == (5, 2, 0.25)
    assert (first.captured_mass, first.captured_rows) == (1.5, 4)
    restore(worker)
    step(worker, 3)
    step(worker, 4)
    device.done = {3}
    worker.drained(1)
    mass = torch.tensor([2.0, 6.0], dtype=torch.float64).view(torch.int64)
    second = worker.read(torch.cat((torch.tensor([6, 4]), mass)), 0, 0.5)
    assert second.tokens.tolist() == []
    assert (second.hits, second.misses, second.captured_mass, second.captured_rows) == (1, 2, 0.5, 2)
    assert (second.offloaded_tokens, second.offload_lag) == (1, 1)
    third = worker.read(torch.cat((torch.tensor([6, 4]), mass)), 0, 0.5)
    assert (third.hits, third.captured_mass, third.offloaded_tokens, third.offload_lag) == (0, 0, 0, 1)


@pytest.mark.parametrize("seq_index", [0, 3])
def test_a_sequence_with_copies_in_flight_is_not_released_and_one_without_an_index_is(seq_index: int) -> None:
    device, worker = recorded()
    restore(worker, seq_index)
    worker.step(DecodeBatch(at(seq_index), at(3), greedy(1)))
    with pytest.raises(RuntimeError, match=f"sequence {seq_index} has copies in flight"):
        worker.release(seq_index, NO_PAGES, NO_PAGES)
    device.done = {3}
    worker.release(seq_index, NO_PAGES, NO_PAGES)
    assert worker._schedule.lag().tolist() == [0] * 4
    worker.release(-1, at(5), NO_PAGES)


def test_a_prompts_copy_that_fails_is_its_own_failure() -> None:
    _, worker = recorded()
    error = RuntimeError("this copy fails")
    offload = worker.offload_prompt

    def fails(chunk: PrefillChunk, start: int, end: int) -> None:
        if chunk.seq_index == 1:
            raise error
        offload(chunk, start, end)

    worker.offload_prompt = fails  # type: ignore[method-assign]
    chunks = [PrefillChunk(i, np.zeros(2, np.int32), 0, at(i), at(i), True) for i in (0, 1, 3)]
    launched = worker.prefill(chunks, greedy(3))
    assert launched.failures == {1: error}
    assert len(launched.result().tokens) == 3
    worker.offload_prompt = offload  # type: ignore[method-assign]
    others = [PrefillChunk(2, np.zeros(2, np.int32), 0, at(5), at(5), True)]
    assert worker.prefill(others, greedy(1)).failures == {}
