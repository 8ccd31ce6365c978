"""A rank: the things that work on it finds there."""

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from hiscore.parallel.group import Group
from hiscore.parallel.shard import Shard

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Rank:
    """One process of a model, with a device of its own."""

    device: torch.device
    group: Group = field(default_factory=Group)
    held: dict[str, Any] = field(default_factory=dict)

    @property
    def shard(self) -> Shard:
        """The rank's place among all."""
        return self.group.shard


def meet(rank: Rank) -> None:
    """The first exchange. NCCL makes its connections then, for seconds in which a process may say nothing."""
    rank.group.sum(torch.zeros(1, device=rank.device)).cpu()


class Work(Protocol[T_co]):
    """A picklable callable that every rank runs on its own share, such as a `functools.partial`."""

    def __call__(self, rank: Rank) -> T_co: ...


class RankError(RuntimeError):
    """A rank could not do its share."""


class Leader:
    """Has work done by all ranks: here by this process alone."""

    rank: Rank
    """The rank of this process, the first."""

    def __init__(self, device: torch.device) -> None:
        self.rank = Rank(device)

    def prepare(self, work: Work[T]) -> T:
        """Have work done in which ranks exchange nothing, and wait for all of them.

        Raises:
            RankError: One of the others failed; the message names it.
        """
        return work(self.rank)

    def do(self, work: Work[T], wait_for_all: bool = False) -> T:
        """Have work done. Ranks that fail here would no longer be in step: the instance ends.

        Returns:
            The first rank's result; without `wait_for_all` the others may not have finished.
        """
        return work(self.rank)

    def started(self) -> None:
        """Take silence for a hang from now on. Ranks that start import and load, and may be silent for long."""

    def close(self) -> None:
        """End the other ranks."""
