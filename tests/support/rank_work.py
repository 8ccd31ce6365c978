"""Work for ranks in tests: what other processes do must be in a module that they can import."""

import os
import signal
import threading

import torch
from torch import Tensor

from hiscore.parallel.rank import Rank


def exchange(rank: Rank, mine: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, a maximum and all parts of numbers that differ from rank to rank."""
    x = torch.full((3, 2), float(rank.shard.rank + mine))
    return rank.group.sum(x.clone()), rank.group.max(x.clone()), rank.group.gather(x)


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


def fail_on(rank: Rank, which: int) -> None:
    if rank.shard.rank == which:
        raise ValueError("no room here")


def end_on(rank: Rank, which: int, how: int) -> None:
    """One rank gets a signal, the others wait for it in a sum."""
    if rank.shard.rank == which:
        os.kill(os.getpid(), how)
        threading.Event().wait(0.2)
    rank.group.sum(torch.ones(1))


STOP = int(signal.SIGSTOP)
KILL = int(signal.SIGKILL)


def note(rank: Rank, payload: bytes) -> None:
    """Nothing but the message."""
    rank.held["length"] = len(payload)
