"""Workers with different settings over the same weights, on each rank. One of them decodes at a time."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.worker.parallel_worker import PLACE, ParallelWorker
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.parallel.rank import Leader, Rank
from perf.decoding.arms import Arm, build_worker, shared_weights
from perf.decoding.closed_loop import Callers

ARMS, WEIGHTS = "arms", "weights"
"""Where a rank holds its workers by their arms, and the context in which they share their weights."""


@contextmanager
def arms_of(
    leader: Leader, checkpoint: Path, arms: Sequence[Arm], memory: MemoryBudget, prefill_tokens: int | None
) -> Iterator[None]:
    """Build workers on all ranks; their weights are drawn there (`random_checkpoint`). At the end all are freed.

    Args:
        leader: Of the ranks.
        checkpoint: A directory with config.json.
        arms: The settings of each worker.
        memory: Of the pools of each.
        prefill_tokens: See `build_worker`.
    """
    leader.prepare(share)
    try:
        for arm in arms:
            leader.do(
                partial(add, checkpoint=checkpoint, arm=arm, memory=memory, prefill_tokens=prefill_tokens),
                wait_for_all=True,
            )
        yield
    finally:
        leader.prepare(free)


@contextmanager
def callers_of(leader: Leader, arm: Arm) -> Iterator[tuple[DecodeEngine, Callers]]:
    """An engine on the workers of an arm, and its callers."""
    leader.prepare(partial(use, name=arm.name))
    callers, worker = Callers(arm.sampling), leader.rank.held[PLACE]
    everywhere: Worker = worker if leader.rank.shard.ranks == 1 else ParallelWorker(leader)
    engine = DecodeEngine(everywhere, None, frozenset(), 10_000, callers.emit)
    callers.serve(engine)
    try:
        yield engine, callers
    finally:
        engine.close()


def worker_of(leader: Leader, arm: Arm) -> CacheWorker:
    """The first rank's worker of an arm."""
    worker: CacheWorker = leader.rank.held[ARMS][arm.name]
    return worker


def share(rank: Rank) -> None:
    """Work: draw weights once for all workers that follow."""
    rank.held[ARMS], rank.held[WEIGHTS] = {}, shared_weights()
    rank.held[WEIGHTS].__enter__()


def add(rank: Rank, checkpoint: Path, arm: Arm, memory: MemoryBudget, prefill_tokens: int | None) -> None:
    """Work: build the worker of an arm."""
    rank.held[ARMS][arm.name] = build_worker(checkpoint, arm, memory, rank, prefill_tokens)


def use(rank: Rank, name: str) -> None:
    """Work: decode with the worker of an arm from now on."""
    rank.held[PLACE] = rank.held[ARMS][name]


def free(rank: Rank) -> None:
    """Work: free all workers and their weights."""
    rank.held.pop(PLACE, None)
    rank.held[ARMS].clear()
    rank.held.pop(WEIGHTS).__exit__(None, None, None)
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
