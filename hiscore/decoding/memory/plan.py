"""Decode's memory: the default sizes of its pools, and the plan that is checked and logged."""

from collections.abc import Sequence

import torch

from hiscore.attention.flashinfer_sizes import PagedSizes, buffer_bytes
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.device.copies import free_bytes, memory_of
from hiscore.recurrence.metadata import FIRST_SEQUENCE_SLOT, MOST_QUERIES, STATES_OF_QUERY
from hiscore.server.host import available_host_bytes
from hiscore.server.ledger import Ledger
from hiscore.server.plan import MemoryLine, MemoryPlan
from hiscore.settings import CacheSettings

MAX_SEQUENCES = {"cpu": 32, "cuda": 64}
"""Default of MAX_STREAMS."""
DEVICE_SHARE = {"cpu": 0.125, "cuda": 0.25}
"""Share of free memory for DEVICE_KV_BYTES by default: weights and the scorer need room on the same device."""
HOST_SHARE = {"cpu": 0.125, "cuda": 0.25}
"""Share of the host's free memory for HOST_KV_BYTES by default, for all GPUs together."""
LIBRARY_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Memory of a process for kernels, graphs and workspaces of libraries."""
BUFFERS = ("buffer", "host_page_of", "last_use")
INDEX = ("index", "device_page_of")


def memory_budget(
    settings: CacheSettings, device: torch.device, weights: int, ledger: Ledger, processes: int = 1
) -> MemoryBudget:
    """Size the pools as the settings say, or by shares of free memory, at most half of what the weights leave.

    On the CPU all `processes`, the ranks of all instances, take from the same memory.
    """
    kind = device.type
    host = ledger.free("host", available_host_bytes)
    on_device = ledger.free(memory_of(device), lambda: free_bytes(device))
    # One process on each GPU.
    sharers = torch.cuda.device_count() if kind == "cuda" else processes
    on_device //= 1 if kind == "cuda" else processes
    return MemoryBudget(
        settings.host_kv_bytes or int(HOST_SHARE[kind] * host) // sharers,
        settings.device_kv_bytes or default_device_bytes(kind, on_device, weights),
        settings.max_streams or MAX_SEQUENCES[kind],
    )


def default_device_bytes(kind: str, free: int, weights: int) -> int:
    """Choose DEVICE_KV_BYTES for a device with so much free before the weights are loaded."""
    return max(0, min(int(DEVICE_SHARE[kind] * free), (free - weights) // 2))


def paged_sizes(cache_config: CacheConfig) -> PagedSizes:
    """Largest sizes of prefill forwards, for attention over pages of staging."""
    rows = cache_config.prefill_token_budget
    return PagedSizes(
        page_size=STAGING_PAGE_SIZE,
        pages=-(-cache_config.context_length // STAGING_PAGE_SIZE),
        max_rows=rows,
        max_segments=min(cache_config.max_sequences, rows),
    )


def prefill_inputs(device: torch.device, cache_config: CacheConfig, has_windows: bool) -> tuple[int, int]:
    """Bound the bytes of inputs of a grouped-query model's prefills, on the device and pinned on the host.

    FlashInfer's buffers, which may not be used, are among them.
    """
    if device.type != "cuda":
        return 0, 0
    lists = 4 * MAX_CONTEXT_SLOTS * (2 if has_windows else 1)
    on_device, pinned = buffer_bytes(paged_sizes(cache_config))
    return lists + on_device, pinned


def state_lines(
    model: ModelShape, cache_config: CacheConfig, number_bytes: int, on_gpu: bool = False
) -> list[MemoryLine]:
    """Plan the states of recurrent layers, and those that a layer of a forward computes."""
    if model.recurrence is None:
        return []
    of_each = model.state_bytes(number_bytes)
    slots = FIRST_SEQUENCE_SLOT + cache_config.state_slots
    # Kernels have a fixed number of them.
    most = MOST_QUERIES if on_gpu else STATES_OF_QUERY * cache_config.max_sequences
    of_forward = most * of_each // len(model.recurrent)
    return [
        MemoryLine("recurrent states", slots * of_each, ("DEVICE_KV_BYTES", "MAX_STREAMS")),
        MemoryLine("states of a forward", of_forward, ("MAX_STREAMS",)),
    ]


def plan_memory(
    device: torch.device,
    sizes: dict[str, int],
    staging: int,
    weights: MemoryLine,
    activations: int,
    inputs: tuple[int, int],
    states: Sequence[MemoryLine] = (),
) -> list[MemoryPlan]:
    """Plan decode's bytes on the host, and on the device if that has memory of its own."""
    pool = MemoryLine("keys and values on the host", sizes["host_kv"], ("HOST_KV_BYTES",))
    counted = ("host_kv", "exchange", "dense_kv", "window_kv", *BUFFERS, *INDEX)
    rest = sum(size for name, size in sizes.items() if name not in counted)
    # Written by kernels alone.
    exchange = sizes["exchange"] if device.type == "cuda" else 0
    of_device = ("DEVICE_KV_BYTES",)
    lines = (
        weights,
        MemoryLine("staging", staging, ("MAX_CONTEXT",)),
        MemoryLine("dense layers", sizes["dense_kv"], of_device),
        MemoryLine("windows", sizes["window_kv"], of_device),
        *states,
        MemoryLine("buffers", sum(sizes[name] for name in BUFFERS), of_device),
        MemoryLine("index", sum(sizes[name] for name in INDEX), of_device),
        MemoryLine("exchange between ranks", exchange, ("MAX_STREAMS",)),
        MemoryLine("block tables", rest, ("MAX_STREAMS",)),
        MemoryLine("activations", activations, ("MAX_STREAMS",)),
        MemoryLine("inputs of prefill", inputs[0], ("MAX_CONTEXT", "MAX_STREAMS")),
        MemoryLine("kernels and libraries", LIBRARY_BYTES[device.type]),
    )
    if device.type != "cuda":
        return [MemoryPlan("host", (pool, *lines))]
    pinned = MemoryLine("inputs of prefill", inputs[1])
    return [MemoryPlan("host", (pool, pinned)), MemoryPlan(memory_of(device), lines)]
