"""A device with little memory: an allocation beyond a limit fails as it does on a CUDA device."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LimitedMemory(TorchDispatchMode):
    """Inside it, an operation that allocates a tensor of more bytes than a limit raises. `refused` counts them."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit, self.refused = limit, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        out = func(*args, **(kwargs or {}))
        new = [each for each in tree_leaves(out) if isinstance(each, Tensor) and _storage(each) not in given]
        if any(each.nbytes > self._limit for each in new):
            self.refused += 1
            raise torch.OutOfMemoryError("no memory")
        return out


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
