"""Exchanges of ranks while they compute: sums, maxima, and parts put together.

NCCL between GPUs, where CUDA graphs may hold the exchange, and gloo between processes on the CPU. Every rank gets
the same bits, so whatever ranks compute from a result they compute alike.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from hiscore.parallel.shard import WHOLE, Shard

dist: Any = torch.distributed  # what is used here of it is not all typed
# A rank that is lost is noticed long before (`leader.Ranks`); this only bounds a start.
TIMEOUT = timedelta(minutes=30)
FEW = 2**16
"""Numbers that ranks on the CPU gather and add up themselves; gloo reduces more."""


class Group:
    """Exchanges of tensors between all ranks, each with the same shapes; this class itself is for one alone."""

    shard: Shard = WHOLE

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks; x may be overwritten."""
        return x

    def max(self, x: Tensor) -> Tensor:
        """The maximum over ranks, element by element; x may be overwritten."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' tensors, side by side in the order of ranks: [T, n] to [T, ranks n]."""
        return x

    def merge(self, x: Tensor) -> Tensor:
        """Return each element of the rank that has it, to the bit; x is 0 elsewhere, and may be overwritten."""
        return x


class Distributed(Group):
    """One of several ranks, by torch.distributed."""

    def __init__(self, store: str, shard: Shard, device: torch.device) -> None:
        """Meet the other ranks at a path that all of them open, of a file that is empty at first."""
        self.shard = shard
        self._by_nccl = device.type == "cuda"
        file = dist.FileStore(store, shard.ranks)
        self._group: Any = (_nccl if self._by_nccl else _gloo)(file, shard)

    def sum(self, x: Tensor) -> Tensor:
        return self._reduce(x, dist.ReduceOp.SUM, torch.add)

    def max(self, x: Tensor) -> Tensor:
        return self._reduce(x, dist.ReduceOp.MAX, torch.maximum)

    def gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._parts(x), dim=1)

    def merge(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        # As integers: a sum of numbers would make 0 of -0, and other bits of a NaN.
        words = x.view(-1).view(torch.uint8)
        self.sum(words.view(torch.int32) if len(words) % 4 == 0 else words)
        return x

    def _parts(self, x: Tensor) -> list[Tensor]:
        """All ranks' tensors, in the order of ranks."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.shard.ranks)]
        options = dist.distributed_c10d.AllgatherOptions()
        # On the current stream, as `torch.distributed` does it, instead of a stream of NCCL's own.
        options.asyncOp = False
        _wait(self._group.allgather([parts], [x], options))
        return parts

    def _reduce(self, x: Tensor, operation: Any, of_two: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Reduce x over ranks by NCCL's or gloo's operation, or by `of_two`; in place if x is contiguous."""
        if not x.numel():
            return x
        x = x.contiguous()
        if not self._by_nccl and x.numel() <= FEW:
            # Gloo's own reduction takes up to three times as long for so few numbers, and half as long for many.
            return x.copy_(reduce(of_two, self._parts(x)))
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        options.asyncOp = False  # as in `_parts`
        _wait(self._group.allreduce([x], options))
        return x


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def _gloo(store: Any, shard: Shard) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # By default gloo listens at the address of the host's name, for whoever reaches it.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, shard.rank, shard.ranks, options)


def _nccl(store: Any, shard: Shard) -> Any:
    # All ranks are on one host. Whoever sets these variables otherwise is listened to.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(store, shard.rank, shard.ranks, options)
