"""The cache's tensors: their memory, its alignment, and what a layer gets of them."""

import ctypes
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache import cache as module
from hiscore.decoding.kv_cache.cache import HUGE_PAGE, KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from tests.unit.decoding.kv_cache.test_shape import SHAPE as SHAPE_OF_8

SHAPE = replace(SHAPE_OF_8, head_dim=2)


def allocate(dtype: torch.dtype = torch.float32, shape: CacheShape = SHAPE) -> KVCache:
    return KVCache.allocate(shape, dtype, torch.device("cpu"))


def test_bytes_are_those_of_the_tensors() -> None:
    cache = allocate(torch.bfloat16)
    for name, size in SHAPE.bytes(torch.bfloat16).items():
        tensor = getattr(cache, name)
        assert tensor.numel() * tensor.element_size() == size, name


def test_a_layer_has_its_own_part_of_each_tensor() -> None:
    cache = allocate()
    for layer, tensor in ((1, cache.dense_kv), (0, cache.buffer), (2, cache.buffer), (3, cache.buffer)):
        tokens = cache.tokens(layer)
        assert tokens.shape == (tensor.shape[1], 2, 3, 2)
        tokens.fill_(layer + 1)
    assert cache.dense_kv.unique().tolist() == [2]
    assert [part.unique().tolist() for part in cache.buffer] == [[1], [3], [4]]
    # Layer 2 attends to what layer 0 selects.
    assert sorted(cache.indexed) == [0, 3]
    cache.index_of(3).fill_(5)
    assert [part.unique().tolist() for part in cache.index] == [[0], [5]]


def test_a_new_cache_holds_nothing_and_a_reset_page_neither() -> None:
    cache = allocate()
    for table in (cache.device_page_of, cache.host_page_of, cache.last_use):
        assert (table == -1).all()
        table.fill_(9)
    cache.reset(torch.tensor([3, 5]), torch.tensor([7]))
    assert (cache.device_page_of == -1).nonzero()[:, 1].unique().tolist() == [3, 5]
    for table in (cache.host_page_of, cache.last_use):
        assert (table == -1).nonzero()[:, 1].unique().tolist() == [7]


def test_a_pool_on_a_cpu_takes_memory_as_it_is_written() -> None:
    """Several servers on one machine each plan with a share of what it has; the control writes all of it."""
    size = 2**28
    shape = replace(SHAPE, host_pages=size // SHAPE.bytes(torch.float32)["host_kv"] * SHAPE.host_pages)
    before = resident_bytes()
    cache = allocate(shape=shape)
    assert resident_bytes() - before < size // 2
    cache.host_kv.fill_(1.0)
    assert resident_bytes() - before > size // 2


def test_the_host_pool_is_aligned_to_huge_pages() -> None:
    for _ in range(3):
        host = allocate(torch.bfloat16).host_kv
        assert host.data_ptr() % HUGE_PAGE == 0
        assert not host.any()
    # The control: memory as NumPy gives it.
    assert np.zeros(2**25, np.int8).ctypes.data % HUGE_PAGE


def test_a_pinned_pool_is_unpinned_when_its_last_view_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: CUDA's calls are recorded. The addresses are those of the pool, which is still there then."""
    pinned: dict[int, int] = {}
    unpinned: list[int] = []

    def register(address: int, size: int, flags: int) -> int:
        pinned[address] = size
        return 0

    def unregister(address: int) -> None:
        unpinned.append(address)
        ctypes.string_at(address, pinned[address])

    calls = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: calls)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    pool = module._host_pool((2, 3, HUGE_PAGE), torch.bfloat16, pinned=True)
    assert pinned == {pool.data_ptr(): 2 * 2 * 3 * HUGE_PAGE}
    layer = pool[1]
    del pool
    assert not unpinned
    del layer
    assert unpinned == list(pinned)
    # The control: what is not pinned.
    module._host_pool((2, 3), torch.bfloat16, pinned=False)
    assert len(unpinned) == 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
