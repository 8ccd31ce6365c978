"""Work for ranks in tests: what other processes do must be in a module that they can import."""

import os
import signal
import threading
from typing import Any

import torch
from torch import Tensor

from hiscore.parallel.rank import Rank
from hiscore.scoring.computation import computation
from tests.support.weights import held


def arrive(rank: Rank) -> None:
    """Nothing but the import of this module."""


def exchange(rank: Rank, mine: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, a maximum and all parts of numbers that differ from rank to rank."""
    x = torch.full((3, 2), float(rank.shard.rank + mine), device=rank.device)
    return rank.group.sum(x.clone()), rank.group.max(x.clone()), rank.group.gather(x)


def sum_of(rank: Rank, terms: list[float], length: int) -> Tensor:
    """The sum of a row of numbers: each rank has its own term everywhere."""
    mine = torch.full((length,), terms[rank.shard.rank], dtype=torch.float64, device=rank.device)
    return rank.group.sum(mine)


def merge(rank: Rank, numbers: Tensor) -> Tensor:
    """What ranks have of some numbers, dealt out to them in turn."""
    mine = torch.zeros_like(numbers, device=rank.device)
    share = slice(rank.shard.rank, None, rank.shard.ranks)
    mine[share] = numbers[share].to(rank.device)
    return rank.group.merge(mine)


def digest(rank: Rank, payload: bytes) -> list[int]:
    """What each rank has got of the same message, and its process."""
    seen = torch.tensor([[hash_of(payload), os.getpid()]], dtype=torch.float64)
    return [int(value) for value in rank.group.gather(seen)[0].tolist()]


def hash_of(payload: bytes) -> int:
    return sum(place * byte for place, byte in enumerate(payload))


def keep(rank: Rank, name: str, value: int) -> None:
    rank.held[name] = value + rank.shard.rank


def kept(rank: Rank, name: str) -> list[int]:
    return [int(value) for value in rank.group.gather(torch.tensor([[float(rank.held[name])]]))[0].tolist()]


def fill(rank: Rank, size: int) -> None:
    rank.held["filled"] = torch.ones(size, device=rank.device)
    rank.group.sum(torch.ones(1, device=rank.device)).cpu()


def fail_on(rank: Rank, which: int) -> None:
    if rank.shard.rank == which:
        raise ValueError("no room here")


def end_on(rank: Rank, which: int, how: int) -> None:
    """One rank gets a signal, the others wait for it in a sum."""
    if rank.shard.rank == which:
        os.kill(os.getpid(), how)
        threading.Event().wait(0.2)
    rank.group.sum(torch.ones(1, device=rank.device)).cpu()


STOP = int(signal.SIGSTOP)
KILL = int(signal.SIGKILL)


def add_nothing(rank: Rank, which: int) -> None:
    """From now on a rank adds zeros to every sum."""
    if rank.shard.rank == which:
        whole = rank.group.sum
        rank.group.sum = lambda x: whole(torch.zeros_like(x))


def add_again(rank: Rank) -> None:
    vars(rank.group).pop("sum", None)


def weight_bytes_held(rank: Rank) -> list[int]:
    decoder: Any = computation(rank).runner
    mine = sum(held(decoder._decoder.weights).values())
    mine_alone = torch.tensor([[float(mine)]], dtype=torch.float64, device=rank.device)
    parts = rank.group.gather(mine_alone)
    return [int(size) for size in parts[0].tolist()]
