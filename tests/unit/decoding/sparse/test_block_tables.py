"""How a sequence's tables begin. What they lead to is tested with residency, step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hiscore.decoding.interface.worker import NO_PAGES, Admission
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.sparse import block_tables
from tests.unit.decoding.sparse.test_residency import SHAPE


def admission(
    seq_index: int, length: int, host: np.ndarray, device: np.ndarray, full: bool = False
) -> Admission:
    return Admission(seq_index, length, host, device, NO_PAGES, full, None)


def pages(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def test_more_device_pages_than_host_pages_are_refused() -> None:
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="device_pages has 6 pages for a sequence of 5"):
        block_tables.admit(cache, admission(0, 10, pages(5), pages(6)))


def test_a_sequence_shorter_than_the_ring_starts_in_it() -> None:
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    first, into = block_tables.admit(cache, admission(1, 5, pages(20), pages(SHAPE.buffer_pages)))
    assert first.tolist() == [0, 1]
    assert into.tolist() == [SHAPE.lru_pages, SHAPE.lru_pages + 1]
    assert (cache.device_page_of == -1).all()


class Waits(TorchDispatchMode):
    """Records what would make the host wait for a CUDA device.

    That is: reads of numbers, sizes that depend on data, and single host numbers put at listed indices, which
    torch copies to the device and waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        number = name == "index_put_" and args[2].dim() == 0
        if number or name in ("_local_scalar_dense", "nonzero", "masked_select", "unique"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_admission_waits_for_nothing() -> None:
    """It is launched while a step runs: a wait would leave the device idle after that step."""
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    host, buffer = pages(20), pages(SHAPE.buffer_pages)
    with torch.inference_mode(), Waits() as waits:
        block_tables.admit(cache, admission(1, 70, host, buffer))
        block_tables.admit(cache, admission(2, 9, host[:5] + 30, buffer[:5] + 20, full=True))
    assert waits.names == []
    with Waits() as control:
        cache.last_use[:, torch.from_numpy(buffer).long()] = 3
        assert cache.last_use.max().item() == 3
    assert control.names == ["index_put_", "_local_scalar_dense"]
