"""`Worker` over several ranks: each has the pages of its own heads, and does what the first one is asked.

Latents have one head, which every rank has: all of them select the same pages and hold them on the device. On the
host each page is stored by one rank, and a rank that needs it gets it from there (`KVCache.read_host`).

All ranks get the same calls in the same order, and sample from the same logits. So the tokens that each feeds to
its next step are the same, and only the first rank reads them. Each rank copies to its own part of the host pool,
in the order of its own schedule, whatever the other ranks' copies are doing. It reads heads there by itself.
Latents all ranks read together: they exchange them on their COMPUTE queues, in one order.

A sequence that fails on the first rank, for want of memory to sample its row for one, fails by itself. If it fails
on another rank alone, that rank would go on with other tokens than the rest: it ends, and the instance with it.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import (
    Admission,
    DecodeBatch,
    Growth,
    PendingForward,
    PrefillChunk,
    Worker,
)
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.parallel.rank import Leader, Rank

PLACE = "worker"
"""Key of a rank's own `Worker`."""
FAILED = "failed sequences"
"""Key of the indices of sequences that failed in the last launch of a rank other than the first."""
POLL_S = 1e-4


class ParallelWorker(Worker):
    """The first rank's worker, for the engine."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._own = worker_of(leader.rank)
        self.cache_config = self._own.cache_config
        self._failed: frozenset[int] = frozenset()

    def prefill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> PendingForward:
        pending: PendingForward = self._everywhere("prefill", chunks, sampling)
        return pending

    def fetch(self, prefix: Prefix) -> None:
        self._leader.do(partial(fetch, prefix=prefix))

    def restore(
        self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32, pages: Int64 | None = None
    ) -> None:
        self._everywhere("restore", seq_index, length, host_pages, staging_pages, pages)

    def admit(self, admission: Admission) -> None:
        self._everywhere("admit", admission)

    def grow(self, growths: list[Growth]) -> None:
        self._everywhere("grow", growths)

    def step(self, batch: DecodeBatch) -> PendingForward:
        pending: PendingForward = self._everywhere("step", batch)
        return pending

    def drained(self, seq_index: int) -> bool:
        # Copies of other ranks are waited for there, on the device's queues and in `release`.
        return self._own.drained(seq_index)

    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        self._leader.do(partial(release, arguments=(seq_index, host_pages, device_pages)))

    def _everywhere(self, method: str, *arguments: Any) -> Any:
        result = self._leader.do(partial(call, method=method, arguments=arguments, failed=self._failed))
        self._failed = _failed_in(result)
        return result


def worker_of(rank: Rank) -> Worker:
    """A rank's own worker."""
    worker: Worker = rank.held[PLACE]
    return worker


def call(rank: Rank, method: str, arguments: Sequence[Any], failed: frozenset[int]) -> Any:
    """Work: call a rank's worker; raise RuntimeError if a sequence failed here and not on the first rank."""
    if alone := rank.held.pop(FAILED, frozenset()) - failed:
        raise RuntimeError(f"sequences {sorted(alone)} have failed on this rank and not on the first")
    result = getattr(worker_of(rank), method)(*arguments)
    if rank.shard.rank:
        rank.held[FAILED] = _failed_in(result)
    return result


def _failed_in(launched: PendingForward | None) -> frozenset[int]:
    return frozenset(launched.failures) if launched is not None else frozenset()


def fetch(rank: Rank, prefix: Prefix) -> None:
    """Work: `Worker.fetch`. What can be found has landed on the first rank; others wait for their own copies."""
    worker: CacheWorker = rank.held[PLACE]
    worker.fetch(prefix, behind_copies=rank.shard.rank > 0)


def release(rank: Rank, arguments: tuple[int, Int32, Int32]) -> None:
    """Work: `Worker.release`. The first rank's copies have completed; another one waits for its own."""
    worker, seq_index = worker_of(rank), arguments[0]
    while rank.shard.rank and seq_index >= 0 and not worker.drained(seq_index):
        time.sleep(POLL_S)
    worker.release(*arguments)
