"""Ranks that share a host pool, one after the other in one process."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hiscore.parallel.group import Group
from hiscore.parallel.shard import Shard


class OneAfterTheOther(Group):
    """A rank; what it merges gets the parts of those that ran before it.

    Args:
        shard: Which rank.
        before: The others, once they have done the same work.
    """

    def __init__(self, shard: Shard, before: Sequence["OneAfterTheOther"] = ()) -> None:
        self.shard = shard
        self.given: list[Tensor] = []
        self._before = before

    def merge(self, x: Tensor) -> Tensor:
        for other in self._before:
            x.view(torch.int32).add_(other.given[len(self.given)].view(torch.int32))
        self.given.append(x.clone())
        return x


def one_after_the_other(ranks: int, last: int) -> list[OneAfterTheOther]:
    """All ranks, in an order in which only the last one gets everything."""
    others = [OneAfterTheOther(Shard(rank, ranks)) for rank in range(ranks) if rank != last]
    return [*others, OneAfterTheOther(Shard(last, ranks), others)]
