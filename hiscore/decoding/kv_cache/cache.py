"""Every tensor of decoding's KV cache, and how they are allocated.

Keys and values are stored in pages of `page_size` tokens. The host pool holds all pages of all sequences, but for
layers with a window. The device holds a small buffer for the sparse layers, into which selected pages are swapped;
all pages of the dense layers, but of those with a window only the newest; and the index that a selector reads.
Dense layers and index are addressed by host pages, buffer and windows by pages of their own.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.parallel.group import Group

# The host pool is aligned to huge pages. NumPy's memory starts 16 bytes past a page: reads by the device then
# straddle cache lines, which costs 9% of the bus bandwidth (perf/FINDINGS.md).
HUGE_PAGE = 2**21


class HostMemoryRefused(Exception):
    """The host pool cannot be pinned; the message gives its size."""


@dataclass
class KVCache:
    """The tensors. Lh, Ls, Li, Ld, Lw: the host's, sparse, indexed, dense, windowed layers; H: KV heads; C: parts;
    P: tokens per page. Windowed layers are not among the dense ones here.

    Attributes:
        host_kv: [Lh, stored pages, H, C, P, head_dim], pinned beside a CUDA device. A head's page is contiguous.
            Host page p is at p // ranks, on the rank that stores it (`CacheShape.host_share`).
        exchange: [n, C, P, head_dim], where ranks that share the host pool bring each other what a step misses in
            a layer; n is 0 if they do not.
        dense_kv: [Ld, host pages * P, C, H, head_dim]: a token is at host page * P + offset.
        window_kv: [Lw, window pages * P + rows of a prefill, C, H, head_dim]: at window page * P + offset.
        buffer: [Ls, device pages * P, C, H, head_dim]: a token is at device page * P + offset.
        index: By `CacheShape.index_kind`. bounds: least and greatest key of each page, [Li, host pages, H, 2,
            head_dim]. keys: [Li, host pages * P, H, head_dim]. dsa: [Li, host pages * P, index_dim].
        host_block_table: int32 [max_sequences, T], a sequence's page to its host page.
        device_block_table: int32 [max_sequences, T], a page of a sequence's buffer to its device page.
        window_block_table: int32 [max_sequences, T], a sequence's page to its window page, where newer tokens may
            have taken the place of its own.
        fully_resident: bool [max_sequences]: the buffer holds the whole sequence in order; nothing is swapped.
        full_attention: bool [max_sequences]: the sequence attends to everything in sparse layers, too.
        device_page_of: int32 [Ls, host pages, H], the device page that holds this host page under LRU, or -1.
        host_page_of: int32 [Ls, device pages, H], the host page that this device page holds under LRU, or -1.
        last_use: int32 [Ls, device pages, H]: 2 * position + 1 of the last step that hit the page, or 2 * position
            of the step that loaded it, or -1. The least is evicted first.
        hits: int64 [1], selected pages (of one head) that were on the device.
        misses: int64 [1], selected pages that had to be swapped in.
        mass: float64 [2], selectors' estimates of the share of attention that they captured: sum and count.
        sparse: Position of each sparse layer in `buffer` and the tables of residency; likewise `indexed` in
            `index`, `dense` in `dense_kv`, `windowed` in `window_kv`, `on_host` in `host_kv` and in staging.
        sharers: The ranks that share the host pool.
        staging: Memory that prompts are prefilled in, [Lh, slots, C, H, head_dim], which `dense_kv` or `buffer` is
            part of; None: a pool of its own.
    """

    shape: CacheShape
    host_kv: Tensor
    exchange: Tensor
    dense_kv: Tensor
    window_kv: Tensor
    buffer: Tensor
    index: Tensor
    host_block_table: Tensor
    device_block_table: Tensor
    window_block_table: Tensor
    fully_resident: Tensor
    full_attention: Tensor
    device_page_of: Tensor
    host_page_of: Tensor
    last_use: Tensor
    hits: Tensor
    misses: Tensor
    mass: Tensor
    sparse: dict[int, int] = field(default_factory=dict)
    indexed: dict[int, int] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)
    windowed: dict[int, int] = field(default_factory=dict)
    on_host: dict[int, int] = field(default_factory=dict)
    sharers: Group = field(default_factory=Group)
    staging: Tensor | None = None

    @classmethod
    def allocate(
        cls, shape: CacheShape, dtype: torch.dtype, device: torch.device, group: Group | None = None
    ) -> "KVCache":
        """Allocate an empty cache, all but the host pool on a device; `group` has the ranks that decode together.

        Raises:
            ValueError: The host pool is shared by other ranks than those.
            HostMemoryRefused: The host pool cannot be pinned for a CUDA device.
        """
        sharers = group if group and shape.host_share.ranks > 1 else Group()
        if sharers.shard != shape.host_share:
            raise ValueError(f"host_share is {shape.host_share}, but this is {sharers.shard}")
        sizes = shape.tensors(dtype)
        host_kv = _host_pool(*sizes.pop("host_kv"), pinned=device.type == "cuda")
        zeros = torch.zeros if device.type == "cuda" else _untouched_zeros
        tensors = {name: zeros(size, dtype=kind, device=device) for name, (size, kind) in sizes.items()}
        for name in ("device_page_of", "host_page_of", "last_use"):
            tensors[name].fill_(-1)
        staging = {"buffers": tensors["buffer"], "dense": tensors["dense_kv"]}.get(shape.prompts_in)
        if shape.prompts_in == "buffers":
            tensors["buffer"] = tensors["buffer"][len(shape.whole_layers) :]
        sparse = {layer: at for at, layer in enumerate(shape.sparse_layers)}
        indexed = {layer: at for at, layer in enumerate(shape.indexed_layers)}
        dense = {layer: at for at, layer in enumerate(shape.whole_layers)}
        windowed = {layer: at for at, layer in enumerate(sorted(shape.windowed))}
        on_host = {layer: at for at, layer in enumerate(shape.host_layers)}
        return cls(
            shape, host_kv, **tensors, sparse=sparse, indexed=indexed, dense=dense, windowed=windowed,
            on_host=on_host, sharers=sharers, staging=staging,
        )  # fmt: skip

    def tokens(self, layer: int) -> Tensor:
        """A layer's tokens on the device: [slots, C, H, head_dim] of `dense_kv`, `window_kv` or `buffer`."""
        if layer in self.windowed:
            return self.window_kv[self.windowed[layer]]
        return self.dense_kv[self.dense[layer]] if layer in self.dense else self.buffer[self.sparse[layer]]

    def index_of(self, layer: int) -> Tensor:
        return self.index[self.indexed[layer]]

    def stored(self, host_pages: Tensor) -> tuple[Tensor, Tensor]:
        """Return which host pages this rank stores, bool, and each page's place in its rank's `host_kv`."""
        share = self.shape.host_share
        return host_pages % share.ranks == share.rank, host_pages // share.ranks

    def read_host(self, layer: int, host_pages: Tensor, *where: Tensor | slice) -> Tensor:
        """Read a layer's `host_kv` at [host_pages, *where]; ranks that share it all ask for these at once."""
        pool = self.host_kv[self.on_host[layer]]
        if self.shape.host_share.ranks == 1:
            return pool[(host_pages, *where)]
        here, at = self.stored(host_pages)
        found = pool[(at.where(here, 0), *where)]
        found[~here] = 0
        return self.sharers.merge(found)

    def write_host(self, layer: int, kept: Tensor, host_pages: Tensor, *where: Tensor | slice) -> None:
        """Store this rank's share of `kept` in a layer's `host_kv` at [host_pages, *where]."""
        here, at = self.stored(host_pages)
        places = (each[here] if isinstance(each, Tensor) else each for each in where)
        self.host_kv[self.on_host[layer]][(at[here], *places)] = kept[here]

    def reset(self, host_pages: Tensor, device_pages: Tensor) -> None:
        """Mark pages, int64 [n] and [m], as holding nothing under LRU, for their next owner."""
        # index_fill_ and not indexing: that would copy the -1 to a CUDA device and wait for it.
        self.device_page_of.index_fill_(1, host_pages, -1)
        self.host_page_of.index_fill_(1, device_pages, -1)
        self.last_use.index_fill_(1, device_pages, -1)


def _host_pool(size: Sequence[int], dtype: torch.dtype, pinned: bool) -> Tensor:
    """Zeros on the host, aligned to a huge page; pinned until they are freed."""
    bytes_ = prod(size) * dtype.itemsize
    memory = np.zeros(bytes_ + HUGE_PAGE, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    pool = torch.from_numpy(memory)[start : start + bytes_].view(dtype).view(tuple(size))
    if pinned and bytes_:
        # torch rounds pinned memory up to powers of two, up to twice what is needed.
        error = torch.cuda.cudart().cudaHostRegister(pool.data_ptr(), bytes_, 0)
        if int(error) != 0:
            raise HostMemoryRefused(
                f"{bytes_ / 2**30:.2f} GiB of host memory could not be pinned: set HOST_KV_BYTES lower"
            )
        weakref.finalize(memory, _unpin, pool.data_ptr()).atexit = False
    return pool


def _unpin(address: int) -> None:
    """Unpin memory, which its next owner could not pin or copy from if it were freed while it is pinned."""
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)


def _untouched_zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Zeros that occupy no memory until they are written: NumPy maps zero pages, torch.zeros writes them."""
    # NumPy lacks some of torch's dtypes; an integer of the same size is used instead.
    return torch.from_numpy(np.zeros(tuple(size), f"i{dtype.itemsize}")).to(device).view(dtype)
