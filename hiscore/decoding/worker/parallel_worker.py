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

from collections.abc import Sequence
from functools import partial, partialmethod
from typing import Any

from hiscore.decoding.interface.worker import PendingForward, Worker
from hiscore.parallel.rank import Leader, Rank

PLACE = "worker"
"""Key of a rank's own `Worker`."""
FAILED = "failed sequences"
"""Key of the indices of sequences that failed in the last launch of a rank other than the first."""


class ParallelWorker(Worker):
    """The first rank's worker, for the engine."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._own = worker_of(leader.rank)
        self.cache_config = self._own.cache_config
        self._failed: frozenset[int] = frozenset()

    def drained(self, seq_index: int) -> bool:
        # Other ranks wait for their own copies: see `CacheWorker`.
        return self._own.drained(seq_index)

    def _everywhere(self, method: str, *arguments: Any) -> Any:
        result = self._leader.do(partial(call, method=method, arguments=arguments, failed=self._failed))
        self._failed = _failed_in(result)
        return result

    prefill: Any = partialmethod(_everywhere, "prefill")
    fetch: Any = partialmethod(_everywhere, "fetch")
    restore: Any = partialmethod(_everywhere, "restore")
    admit: Any = partialmethod(_everywhere, "admit")
    grow: Any = partialmethod(_everywhere, "grow")
    step: Any = partialmethod(_everywhere, "step")
    release: Any = partialmethod(_everywhere, "release")


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
