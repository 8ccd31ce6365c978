"""Which tokens of staging go where when a sequence is admitted: small caches, recorded copies."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import Admission
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.worker.admission import fill_from_staging, index_from_staging

PAGE_SIZE = 4
SHAPE = CacheShape(
    layers=2, kv_heads=1, kv_parts=2, head_dim=2, page_size=PAGE_SIZE, max_sequences=3, max_pages=8,
    host_pages=20, device_pages=12, lru_pages=3, ring_pages=2, top_pages=3, dense_layers=frozenset({0}),
    index_kind="bounds",
)  # fmt: skip
HOST_PAGES, RESIDENT = [7, 3, 9, 1, 12, 15, 4], [5, 0, 8, 2, 11, 6, 10]
# Staging pages of 16 tokens.
STAGED = [*range(32, 48), *range(16, 32)]


class Ops:
    """Cache operations that record what they copy."""

    def __init__(self) -> None:
        self.copied: dict[str, tuple[list[int], list[int]]] = {}

    def fill_buffer(self, staging: Tensor, slots: Tensor, buffer_slots: Tensor) -> None:
        self.copied["buffer"] = slots.tolist(), buffer_slots.tolist()

    def fill_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        self.copied["dense"] = slots.tolist(), host_slots.tolist()


class Model:
    def __init__(self) -> None:
        self.cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
        self.staging = torch.zeros(0)
        self.indexed: Any = None

    def index_prompt(self, ops: Ops, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        self.indexed = slots.tolist(), host_pages.tolist(), host_slots.tolist()


def admission(length: int, device_pages: list[int]) -> Admission:
    host = np.array(HOST_PAGES, np.int32)
    return Admission(
        2, length, host, np.array(device_pages, np.int32), np.array([2, 1], np.int32), False, None
    )


def tokens(*pages: int, length: int) -> list[int]:
    positions = [page * PAGE_SIZE + offset for page in pages for offset in range(PAGE_SIZE)]
    return [STAGED[p] for p in positions if p < length]


def slots(*pages: int, count: int) -> list[int]:
    return [page * PAGE_SIZE + offset for page in pages for offset in range(PAGE_SIZE)][:count]


@pytest.mark.parametrize(
    ("length", "device_pages", "pages", "into"),
    [
        # All of it, in order.
        (10, RESIDENT, (0, 1, 2), (5, 0, 8)),
        # Of pages 0 to 6, of which the last has 2 tokens: the first one, two before the ring, and the ring.
        (26, [5, 0, 8, 2, 11], (0, 3, 4, 5, 6), (5, 0, 8, 11, 2)),
    ],
)
def test_the_buffer_gets_the_pages_that_it_starts_with(
    length: int, device_pages: list[int], pages: tuple[int, ...], into: tuple[int, ...]
) -> None:
    model, ops = Model(), Ops()
    fill_from_staging(model, ops, admission(length, device_pages))  # type: ignore[arg-type]
    from_slots, to_slots = ops.copied["buffer"]
    expected = dict(zip(tokens(*pages, length=length), slots(*into, count=99), strict=False))
    assert dict(zip(from_slots, to_slots, strict=True)) == expected
    cache: Any = SimpleNamespace(**vars(model.cache))
    assert cache.host_block_table[2, :7].tolist() == HOST_PAGES
    assert cache.device_block_table[2, : len(device_pages)].tolist() == device_pages
    assert bool(cache.fully_resident[2]) == (device_pages == RESIDENT)


def test_dense_layers_and_the_index_get_the_whole_prompt_in_the_order_of_host_pages() -> None:
    model, ops = Model(), Ops()
    index_from_staging(model, ops, admission(10, RESIDENT))  # type: ignore[arg-type]
    host_slots = slots(7, 3, 9, count=10)
    assert ops.copied == {"dense": (STAGED[:10], host_slots)}
    assert model.indexed == (STAGED[:10], HOST_PAGES, host_slots)
