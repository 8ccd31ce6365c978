"""Every tensor of decoding's key/value cache, stated once: what lies where, in which shape, in how many bytes.

A token's keys and values lie in pages of `page` tokens. The host pool holds all pages of all streams. On the
device there are a small buffer for the sparse layers (pages of its own, moved in and out), the whole of the dense
layers (`dense_kv`), and the index that a selector reads; the latter two are addressed by the pages of the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Index = Literal["none", "bounds", "keys", "dsa"]

# The host pool begins where a huge page does. NumPy's memory begins 16 bytes after a page: all that is read then
# lies across the lines that a device asks for, which costs 9% of the bus (perf/results/h200/README.md).
HUGE_PAGE = 2**21


class HostMemoryRefused(Exception):
    """The host pool cannot be had as pinned memory; the message names its size."""


@dataclass(frozen=True)
class CacheShape:
    """Sizes of the cache. Raises ValueError, naming the field, where they do not fit together."""

    layers: int
    heads: int
    """Of the cache: KV heads, 1 for a latent."""
    parts: int
    """Of a row: 2 for key and value, 1 for a latent."""
    width: int
    """Of a part: the head's dimension, or a latent's with its rotary part."""
    page: int
    """Tokens in a page."""
    streams: int
    max_pages: int
    """Pages of the longest stream."""
    host_pages: int
    device_pages: int
    lru_pages: int
    """Pages of a stream's buffer under LRU; what comes after them is the ring."""
    ring_pages: int
    """Pages of a stream's buffer that hold its newest tokens."""
    top_pages: int
    """Pages that a selector chooses for each stream and head."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that attend to everything (or to a window), whole on the device."""
    index: Index = "none"
    index_width: int = 0
    """Of an index key, where the checkpoint has an indexer of its own (`dsa`)."""
    sharing_layers: frozenset[int] = frozenset()
    """Layers that attend to what a layer before them has selected, and need no index."""

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "parts", "width", "page", "streams", "max_pages", "host_pages"):
            _at_least(name, getattr(self, name), 1)
        _at_least("device_pages", self.device_pages, 1 if self.sparse_layers else 0)
        _at_least("ring_pages", self.ring_pages, 1)
        _at_least("top_pages", self.top_pages, self.ring_pages + 1 if self.index == "bounds" else 1)
        # Then what a step has selected is never among its victims.
        _at_least("lru_pages", self.lru_pages, self.top_pages)
        if self.index in ("keys", "dsa") and self.page != 1:
            raise ValueError(f"page is {self.page}, but the index {self.index!r} selects single tokens")
        if self.sparse_layers and self.index == "none":
            raise ValueError("index is 'none', but only dense layers can do without one")
        for name in ("max_pages", "lru_pages") if self.sparse_layers else ():
            if getattr(self, name) >= 2**21:
                raise ValueError(f"{name} is {getattr(self, name)}, at most {2**21 - 1} can be selected from")
        for name in ("host_pages", "device_pages"):
            if getattr(self, name) * self.page > 2**31 - 1:
                raise ValueError(
                    f"{name} {getattr(self, name)} of {self.page} tokens: more slots than an int32 names"
                )

    @property
    def buffer_pages(self) -> int:
        """Pages of a stream's buffer, unless all of it takes fewer."""
        return self.lru_pages + self.ring_pages

    @cached_property
    def sparse_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.layers) if layer not in self.dense_layers)

    @cached_property
    def indexed_layers(self) -> tuple[int, ...]:
        """Sparse layers that select for themselves."""
        return tuple(layer for layer in self.sparse_layers if layer not in self.sharing_layers)

    def tensors(self, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor of `KVCache`, under its name."""
        row = (self.parts, self.heads, self.width)
        dense, sparse, indexed = len(self.dense_layers), len(self.sparse_layers), len(self.indexed_layers)
        index = {
            "none": (0,),
            "bounds": (indexed, self.host_pages, self.heads, 2, self.width),
            "keys": (indexed, self.host_pages * self.page, self.heads, self.width),
            "dsa": (indexed, self.host_pages * self.page, self.index_width),
        }[self.index]
        # One width for both, with room for any place in a buffer, so that no look-up needs to ask.
        table = (self.streams, max(self.max_pages, self.buffer_pages))
        host = (self.layers, self.host_pages, self.heads, self.parts, self.page, self.width)
        return {
            "host_kv": (host, dtype),
            "dense_kv": ((dense, self.host_pages * self.page if dense else 0, *row), dtype),
            "buffer": ((sparse, self.device_pages * self.page, *row), dtype),
            "index": (index, dtype),
            "host_block_table": (table, torch.int32),
            "device_block_table": (table, torch.int32),
            "fully_resident": ((self.streams,), torch.bool),
            "full_attention": ((self.streams,), torch.bool),
            "device_page_of": ((sparse, self.host_pages, self.heads), torch.int32),
            "host_page_of": ((sparse, self.device_pages, self.heads), torch.int32),
            "last_use": ((sparse, self.device_pages, self.heads), torch.int32),
            "hits": ((1,), torch.int64),
            "misses": ((1,), torch.int64),
            "mass": ((2,), torch.float64),
        }

    def bytes(self, dtype: torch.dtype) -> dict[str, int]:
        """Bytes of each tensor of `KVCache`; all but `host` lie on the device."""
        return {name: prod(shape) * kind.itemsize for name, (shape, kind) in self.tensors(dtype).items()}


@dataclass(frozen=True)
class StepBatch:
    """The rows of a step on the device: int32 [R] each, row by row another stream.

    slots: the stream's slot, -1 for padding; positions: where the row's token stands, 0 for padding. A token sees
    those up to itself.
    """

    slots: Tensor
    positions: Tensor

    @cached_property
    def valid(self) -> Tensor:
        """bool [R]: which rows are no padding."""
        return self.slots >= 0

    @cached_property
    def streams(self) -> Tensor:
        """int64 [R]: slots that may index a table, padding's too."""
        return self.slots.clamp(min=0).long()


@dataclass
class KVCache:
    """The tensors; L, Ls, Li: all, sparse, indexed layers, H: heads, C: parts, P: tokens in a page, D: width."""

    shape: CacheShape
    host_kv: Tensor
    """[L, host pages, H, C, P, D], pinned beside a CUDA device: a page of a head is one run of memory."""
    dense_kv: Tensor
    """[dense layers, host pages * P, C, H, D]: tokens at page * P + offset of the host's pages."""
    buffer: Tensor
    """[Ls, device pages * P, C, H, D]: tokens at page * P + offset of the device's pages."""
    index: Tensor
    """bounds: least and greatest key of each page, [Li, host pages, H, 2, D]; keys: [Li, host pages * P, H, D];
    dsa: [Li, host pages * P, index width]."""
    host_block_table: Tensor
    """int32 [streams, T]: a stream's page to a page of the host."""
    device_block_table: Tensor
    """int32 [streams, T]: a place in a stream's buffer to a page of the device."""
    fully_resident: Tensor
    """bool [streams]: the buffer holds the whole stream, place i its page i; nothing is ever moved out."""
    full_attention: Tensor
    """bool [streams]: the stream attends to everything in sparse layers too."""
    device_page_of: Tensor
    """int32 [Ls, host pages, H]: the page of the device that holds this one under LRU, or -1."""
    host_page_of: Tensor
    """int32 [Ls, device pages, H]: the page of the host held under LRU, or -1."""
    last_use: Tensor
    """int32 [Ls, device pages, H]: 2 * position + 1 of the step that last found it, 2 * position of the step that
    loaded it, or -1: the least is the next to go."""
    hits: Tensor
    """int64 [1]: pages of heads that were selected and on the device."""
    misses: Tensor
    """int64 [1]: those that had to be copied there."""
    mass: Tensor
    """float64 [2]: the selectors' estimates of the share of attention that they captured, summed; their number."""
    sparse: dict[int, int] = field(default_factory=dict)
    """Where a sparse layer stands in `buffer`, `device_page_of`, `host_page_of` and `last_use`."""
    indexed: dict[int, int] = field(default_factory=dict)
    """Where a layer that selects for itself stands in `index`."""
    dense: dict[int, int] = field(default_factory=dict)
    """Where a dense layer stands in `dense_kv`."""

    @classmethod
    def allocate(cls, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> "KVCache":
        """Allocate everything, empty.

        Raises:
            HostMemoryRefused: on a CUDA device, the host pool cannot be pinned.
        """
        sizes = shape.tensors(dtype)
        host = _host_pool(*sizes.pop("host_kv"), pinned=device.type == "cuda")
        zeros = torch.zeros if device.type == "cuda" else _untouched_zeros
        tensors = {name: zeros(size, dtype=kind, device=device) for name, (size, kind) in sizes.items()}
        for name in ("device_page_of", "host_page_of", "last_use"):
            tensors[name].fill_(-1)
        sparse = {layer: at for at, layer in enumerate(shape.sparse_layers)}
        indexed = {layer: at for at, layer in enumerate(shape.indexed_layers)}
        dense = {layer: at for at, layer in enumerate(sorted(shape.dense_layers))}
        return cls(shape, host, **tensors, sparse=sparse, indexed=indexed, dense=dense)

    def tokens(self, layer: int) -> Tensor:
        """Where a layer's tokens lie on the device: [slots, C, H, D] of `dense_kv` or of `buffer`."""
        return self.dense_kv[self.dense[layer]] if layer in self.dense else self.buffer[self.sparse[layer]]

    def index_of(self, layer: int) -> Tensor:
        """What a layer's own selector reads: a layer's part of `index`."""
        return self.index[self.indexed[layer]]

    def close(self) -> None:
        """Unpin the host pool; nothing may read or write it any more."""
        if self.buffer.device.type == "cuda":
            torch.cuda.cudart().cudaHostUnregister(self.host_kv.data_ptr())

    def reset(self, host_pages: Tensor, device_pages: Tensor) -> None:
        """Forget what these pages (int64 [n] each) hold under LRU: for their next owner."""
        # A number assigned to listed places would be copied to a CUDA device first, and the host would wait.
        self.device_page_of.index_fill_(1, host_pages, -1)
        self.host_page_of.index_fill_(1, device_pages, -1)
        self.last_use.index_fill_(1, device_pages, -1)


def _host_pool(size: Sequence[int], dtype: torch.dtype, pinned: bool) -> Tensor:
    bytes_ = prod(size) * dtype.itemsize
    room = _untouched_zeros((bytes_ + HUGE_PAGE,), torch.uint8)
    pool = room[-room.data_ptr() % HUGE_PAGE :][:bytes_].view(dtype).view(tuple(size))
    if pinned:
        # torch's own pinned memory comes in powers of two, up to twice what is asked for.
        error = torch.cuda.cudart().cudaHostRegister(pool.data_ptr(), bytes_, 0)
        if int(error) != 0:
            raise HostMemoryRefused(
                f"{bytes_ / 2**30:.2f} GiB of pinned host memory were refused: set HOST_KV_BYTES lower"
            )
    return pool


def _untouched_zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Zeros that take no memory until they are written: `torch.zeros` writes them on a CPU, NumPy does not."""
    # NumPy does not know all of torch's types, but a type of the same size for each.
    return torch.from_numpy(np.zeros(tuple(size), f"i{dtype.itemsize}")).to(device).view(dtype)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, at least {least} is needed")
