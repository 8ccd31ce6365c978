"""Work of ranks that decode, in tests."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hiscore.decoding.kv_cache.cache import HostMemoryRefused, KVCache
from hiscore.decoding.worker import parts
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.parallel_worker import PLACE
from hiscore.errors import Code, RequestError
from hiscore.parallel.rank import Rank
from tests.support.decoding import build
from tests.support.late_copies import LateCopies


def arrive(rank: Rank) -> None:
    """Nothing but the import of this module."""


def build_on(
    rank: Rank,
    path: Path,
    late: int | None,
    deaf: bool,
    given: tuple[Any, ...],
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> None:
    """A worker on each rank; the copies of the rank `late` are late.

    Deaf: its forwards wait for no copy to the host. It is asked a thousand times before one runs: all steps of a
    sequence pass in the meantime, and ranks ask each other slowly.
    """
    worker = build(path, *given, dtype=dtype, device=str(rank.device), group=rank.group, **settings)
    if late == rank.shard.rank:
        LateCopies(1_000 if deaf else 20, Queue.OFFLOAD if deaf else None).install(worker)
    rank.held[PLACE] = worker


def host_bytes(rank: Rank) -> list[int]:
    pool = rank.held[PLACE]._cache.host_kv
    mine = torch.tensor(
        [[float(pool.numel() * pool.element_size())]], dtype=torch.float64, device=rank.device
    )
    return [int(size) for size in rank.group.gather(mine)[0].tolist()]


def keep_to_itself(rank: Rank, which: int) -> None:
    """From now on a rank takes nothing from what the others merge with it."""
    if rank.shard.rank == which:
        whole = rank.group.merge

        def own(x: torch.Tensor) -> torch.Tensor:
            kept = x.clone()
            whole(x)
            return kept

        rank.group.merge = own


def merge_again(rank: Rank) -> None:
    vars(rank.group).pop("merge", None)


def store_zeros(rank: Rank, which: int) -> None:
    """From now on a rank stores zeros on the host."""
    if rank.shard.rank == which:
        cache = rank.held[PLACE]._cache
        write = cache.write_host
        cache.write_host = lambda layer, kept, *where: write(layer, torch.zeros_like(kept), *where)


def offload_nothing(rank: Rank, which: int) -> None:
    """From now on a rank copies nothing to the host."""
    if rank.shard.rank == which:
        ops = rank.held[PLACE]._ops
        ops.offload_step = ops.offload_prompt = lambda *_: None


class FoundFlashInfer:
    """What a rank would attend by, as far as ranks agree on it."""

    def __init__(self, has_rows: bool = False) -> None:
        self.has_rows = has_rows

    def over_rows(self, rows: int) -> object | None:
        return self if self.has_rows else None

    def drop_rows(self) -> None:
        self.has_rows = False


def agreed(rank: Rank, lacking: tuple[int, ...], without_rows: tuple[int, ...] = ()) -> list[list[bool]]:
    """For each rank, whether it uses FlashInfer, and over rows, where all but some can."""
    own = rank.shard.rank
    found: Any = None if own in lacking else FoundFlashInfer(own not in without_rows)
    used = parts.agree_on(found, rank.group, rank.device)
    mine = [float(used is not None), float(used is not None and used.over_rows(2**20) is not None)]
    everyone = rank.group.gather(torch.tensor([mine], device=rank.device))[0]
    return [[bool(each) for each in row] for row in everyone.view(-1, 2).tolist()]


def refuse_to_pin(rank: Rank, which: int) -> None:
    """From now on a rank's host pool cannot be pinned."""
    if rank.shard.rank == which:

        def refuse(*arguments: Any) -> None:
            raise HostMemoryRefused("0.50 GiB of host memory could not be pinned: set HOST_KV_BYTES lower")

        vars(parts)["KVCache"] = SimpleNamespace(allocate=refuse)


def pin_again(rank: Rank) -> None:
    vars(parts)["KVCache"] = KVCache


def fail_to_sample(rank: Rank, which: tuple[int, ...], at: int) -> None:
    """Some ranks have no memory to sample the first row of a launch, counted from now on."""
    if rank.shard.rank in which:
        sampler = rank.held[PLACE]._sampler
        sample, numbers = sampler.sample, count()

        def lack(logits: torch.Tensor, *arguments: Any) -> Any:
            ids, reported, failed = sample(logits, *arguments)
            if next(numbers) == at and len(ids):
                failed = {**failed, 0: RequestError("there is no memory left", Code.UNAVAILABLE)}
                ids[0] = (ids[0] + 1) % logits.shape[1]
            return ids, reported, failed

        sampler.sample = lack
