"""A device's memory, and copies between it and the host that wait for neither."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.server.host import available_host_bytes

OnDevice = Callable[[], Tensor]
"""A function that gives an array on its device, int32."""
MOST_KEPT = 256
"""Arrays that `Kept` keeps."""
MOST_IN_KEPT = 64


def memory_of(device: torch.device) -> str:
    """The memory that a device's tensors are in: its own, or the host's."""
    return str(device) if device.type == "cuda" else "host"


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that nobody has taken."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_host_bytes()


def upload(values: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Start a copy to a device, on its current stream; on the CPU the result may share memory with `values`."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def download(values: Tensor) -> Tensor:
    """Start a copy to the host, complete when the device's current stream has reached it; none on the CPU."""
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def cpu_has_bfloat16(facts: Path = Path("/proc/cpuinfo")) -> bool:
    """Look up whether the processor multiplies in bfloat16 itself; true if there is no file `facts`."""
    try:
        words = set(facts.read_text().split())
    except OSError:
        return True
    return not words.isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


class Uploads:
    """Arrays for a device, copied together: the first one that is asked for takes along all that have been added.

    A copy of a few numbers takes the host as long as one of all of them. Pinned memory comes from PyTorch's
    allocator, which hands a block out again when the copy from it has ended. On the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: list[Int32] = []
        self._sent: list[Tensor] = []

    def add(self, values: Int32 | Int64) -> OnDevice:
        """Add an array [n] of whole numbers below 2**31, to be asked for by the function that is returned."""
        place = len(self._sent) + len(self._waiting)
        self._waiting.append(values.astype(np.int32, copy=False))
        return lambda: self._get(place)

    def _get(self, place: int) -> Tensor:
        if place >= len(self._sent):
            self._sent += self._send()
            self._waiting = []
        return self._sent[place]

    def _send(self) -> list[Tensor]:
        if self._device.type == "cpu":
            return [torch.from_numpy(values) for values in self._waiting]
        sizes = [len(values) for values in self._waiting]
        return list(_joined(self._waiting, True).to(self._device, non_blocking=True).split(sizes))


class PinnedArrays:
    """Arrays to copy into tensors of a device, in one piece of pinned memory: much cheaper than new tensors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._added: list[Int32 | Int64] = []
        self.length = 0
        self._pinned: Tensor | None = None

    def add(self, values: Int32 | Int64) -> "PinnedArray":
        """Add an array of whole numbers below 2**31, of one dimension, before any is copied."""
        if self._pinned is not None:
            raise RuntimeError("an array comes too late: the others are in pinned memory")
        begin, self.length = self.length, self.length + len(values)
        self._added.append(values)
        return PinnedArray(self, begin, len(values))

    def pinned(self) -> Tensor:
        """Join all arrays end to end, int32 on the host."""
        if self._pinned is None:
            self._pinned = _joined(self._added, self._device.type == "cuda")
            self._added = []
        return self._pinned


@dataclass(frozen=True)
class PinnedArray:
    of: PinnedArrays
    begin: int
    length: int

    def __len__(self) -> int:
        return self.length

    def copy_to(self, target: Tensor) -> None:
        """Start a copy to the first elements of a tensor, int32, on the device's current stream."""
        if self.length:
            target[: self.length].copy_(self._on_host(), non_blocking=True)

    def to(self, device: torch.device) -> Tensor:
        """Start a copy to a new tensor, int32; on the CPU it is the array itself."""
        return self._on_host().to(device, non_blocking=True)

    def _on_host(self) -> Tensor:
        pinned = self.of.pinned()
        return pinned if self.length == self.of.length else pinned[self.begin : self.begin + self.length]


def _joined(arrays: Sequence[Int32 | Int64], pinned: bool) -> Tensor:
    """Join arrays of whole numbers below 2**31 end to end, int32 on the host."""
    joined = torch.empty(sum(map(len, arrays)), dtype=torch.int32, pin_memory=pinned)
    np.concatenate(arrays, out=joined.numpy(), casting="same_kind")
    return joined


class Kept:
    """Small arrays that batch after batch needs: the `MOST_KEPT` used last stay on the device."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[bytes, Tensor] = OrderedDict()

    def add(self, values: Int32 | Int64, uploads: Uploads) -> OnDevice:
        """Give an array that is on the device already, or add it to `uploads`."""
        if len(values) > MOST_IN_KEPT:
            return uploads.add(values)
        values = values.astype(np.int32, copy=False)
        key = values.tobytes()
        if (kept := self._arrays.get(key)) is not None:
            self._arrays.move_to_end(key)
            return lambda: kept
        added = uploads.add(values)

        def keep() -> Tensor:
            if key not in self._arrays:
                # What was sent is a view, which would keep all that was sent with it.
                self._arrays[key] = added().clone()
                if len(self._arrays) > MOST_KEPT:
                    self._arrays.popitem(last=False)
            return self._arrays[key]

        return keep


def fix_product_sums() -> None:
    """Let cuBLAS choose only kernels that add up the terms of a product in one order, for the whole process.

    Otherwise long sums of few rows are split, and a row's bits depend on the number of rows. On Hopper the rest
    add up alike, at every size that was compared (perf/results/h200/row_invariance.json).
    """
    torch.backends.cuda.preferred_blas_library("cublaslt")
    # Neither reduced precision nor split sums.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)
