"""How a sequence's tables begin. What they lead to is tested with residency, step by step."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.sparse import block_tables
from tests.unit.decoding.sparse.test_residency import SHAPE


def test_more_device_pages_than_host_pages_are_refused() -> None:
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="device_pages has 6 pages for a sequence of 5"):
        block_tables.admit(cache, 0, 10, torch.arange(5), torch.arange(6))


def test_a_sequence_shorter_than_the_ring_starts_in_it() -> None:
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    first = block_tables.admit(cache, 1, 5, torch.arange(20), torch.arange(SHAPE.buffer_pages))
    assert first.pages.tolist() == [0, 1]
    assert first.device_pages.tolist() == [SHAPE.lru_pages, SHAPE.lru_pages + 1]
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
    host, buffer = torch.arange(20), torch.arange(SHAPE.buffer_pages)
    with torch.inference_mode(), Waits() as waits:
        block_tables.admit(cache, 1, 70, host, buffer)
        block_tables.admit(cache, 2, 9, host[:5] + 30, buffer[:5] + 20, full_attention=True)
    assert waits.names == []
    with Waits() as control:
        cache.last_use[:, buffer] = 3
        assert cache.last_use.max().item() == 3
    assert control.names == ["index_put_", "_local_scalar_dense"]
