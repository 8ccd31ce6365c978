"""Decode's pools at the defaults, for checkpoints and machines of every size."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hiscore.attention.flashinfer_sizes import LENGTHS_BYTES, PLAN_BYTES, WORKSPACE_BYTES
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.memory import plan as decode_plan
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.model_sizes import forward_bytes
from hiscore.decoding.memory.plan import (
    default_device_bytes,
    memory_budget,
    paged_sizes,
    plan_memory,
    prefill_inputs,
)
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.decoding.worker import build
from hiscore.models.deepseek.activations import SCORE_ELEMENTS
from hiscore.models.support import context_limit
from hiscore.parallel.shard import Shard
from hiscore.server.ledger import Ledger
from hiscore.server.plan import GIB, MemoryExceeded, MemoryLine, MemoryPlan
from hiscore.settings import CacheSettings
from tests.support.geometries import GEOMETRIES, architecture

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
QUEST = CacheSettings(selector="quest")


def shape_of(name: str, max_context: int | None = None) -> ModelShape:
    a = architecture(name)
    return ModelShape(a.kv_heads, 2, a.head_dim, a.windows, context_limit(a.context_length, max_context))


def planned(
    name: str, device: torch.device, device_gib: float, host_gib: float, settings: CacheSettings = QUEST
) -> tuple[CacheShape, CacheConfig, list[MemoryPlan]]:
    """At the defaults, on an empty machine."""
    kind, on_host = device.type, int(host_gib * GIB)
    on_device = int(device_gib * GIB) if kind == "cuda" else on_host
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    weights = MemoryLine("weights", int(GEOMETRIES[name].parameters * dtype.itemsize))
    of_device = default_device_bytes(kind, on_device, weights.bytes)
    budget = MemoryBudget(
        int(decode_plan.HOST_SHARE[kind] * on_host), of_device, decode_plan.MAX_SEQUENCES[kind]
    )
    model, a = shape_of(name, settings.max_context), architecture(name)
    is_large = kind == "cuda" and on_device >= build.LARGE_DEVICE_BYTES and not any(a.windows)
    rows = build.LONG_PREFILL_TOKEN_BUDGET if is_large else build.PREFILL_TOKEN_BUDGET[kind]
    shape, cache_config = plan_cache(settings, model, budget, dtype, rows)
    staging = shape.staging_bytes(cache_config.staging_pages, dtype)
    activations = forward_bytes(a, rows, budget.max_sequences, dtype.itemsize, kind == "cuda")
    inputs = prefill_inputs(device, cache_config, bool(shape.windowed))
    return shape, cache_config, plan_memory(device, shape.bytes(dtype), staging, weights, activations, inputs)


def test_a_prefill_with_an_indexer_is_planned_by_its_parts() -> None:
    """At the widths of DeepSeek-V3.2. The control: each of its parts counts."""
    sizes: dict[str, Any] = {
        "vocab_size": 129_280, "hidden_size": 7_168, "intermediate_size": 18_432, "heads": 128, "q_rank": 1_536,
        "latent_rank": 512, "rope_dim": 64, "row_dim": 576, "nope_dim": 128,
        "indexer": SimpleNamespace(heads=64, head_dim=128),
        "experts": SimpleNamespace(width=2_048, routing=SimpleNamespace(per_token=8)),
    }  # fmt: skip

    def bytes_of(top_k: int, rows: int = 2_048, **changed: int) -> int:
        return forward_bytes(cast(Any, SimpleNamespace(**sizes | changed)), rows, 64, 2, True, top_k)

    by_kernels = bytes_of(2_048)
    assert 4 * SCORE_ELEMENTS < by_kernels < 2 * GIB
    # What a row selects from: a list for each, and its query in the latents' space.
    assert by_kernels - bytes_of(1_024) == 2_048 * 4 * 1_024
    assert by_kernels - bytes_of(2_048, latent_rank=256) == 2_048 * 128 * 2 * 256 * 2
    assert by_kernels > bytes_of(2_048, rows=2_047)


@pytest.mark.parametrize("gpu", [23.5, 79.1, 139.8])
@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name != "SmolLM2-135M"])
def test_what_is_planned_is_what_the_pools_may_take(name: str, gpu: float) -> None:
    if GEOMETRIES[name].parameters * 2 > gpu * GIB:
        with pytest.raises(ValueError, match="DEVICE_KV_BYTES is 0 bytes"):
            planned(name, CUDA, gpu, 200)
        return
    shape, cache_config, (host, device) = planned(name, CUDA, gpu, 200)
    of_pools = {"staging", "dense layers", "buffers", "index"}
    assert sum(line.bytes for line in device.lines if line.name in of_pools) <= gpu * GIB / 4
    assert host.total - 2 * PLAN_BYTES == shape.bytes(torch.bfloat16)["host_kv"] <= 50 * GIB
    assert cache_config.context_length == min(32_768, architecture(name).context_length) or gpu < 24


def test_what_ranks_bring_each_other_of_latents_is_planned() -> None:
    """DeepSeek-V3.2's rows. On the CPU nothing is written to that memory."""
    settings = CacheSettings(selector="dsa", max_context=32_768)
    latents = ModelShape(1, 1, 576, (None,) * 61, 32_768, index_dim=128, top_k=2_048)

    def plans(ranks: int, device: torch.device) -> list[MemoryPlan]:
        model = replace(latents, host_share=Shard(0, ranks))
        shape, _ = plan_cache(settings, model, MemoryBudget(2**40, 2**40, 64), torch.bfloat16, 2_048)
        return plan_memory(device, shape.bytes(torch.bfloat16), 0, MemoryLine("weights", 1), 1, (0, 0))

    def line(ranks: int, device: torch.device) -> int:
        lines = (line for plan in plans(ranks, device) for line in plan.lines)
        return sum(line.bytes for line in lines if line.name == "exchange between ranks")

    assert line(4, CUDA) == 64 * 2_048 * 576 * 2
    assert line(1, CUDA) == line(4, CPU) == 0
    _, shared = plans(4, CUDA)
    shared.check(shared.total)
    with pytest.raises(MemoryExceeded, match=r"exchange between ranks 0\.14 GiB.* lower .*MAX_STREAMS"):
        shared.check(shared.total - 1)


def test_what_prefills_say_about_their_tokens_is_planned() -> None:
    """Where contexts are, in all layers and where these keep a window; FlashInfer's buffers, if it may be used."""
    _, cache_config, plans = planned("Llama-3.1-8B", CUDA, 79.1, 200)
    host, device = (next(x for x in plan.lines if x.name == "inputs of prefill") for plan in plans)
    sizes = paged_sizes(cache_config)
    pages = 4 * sizes.max_segments * (32_768 // STAGING_PAGE_SIZE)
    assert host.bytes == 2 * PLAN_BYTES  # over pages, and over rows
    slots = 4 * MAX_CONTEXT_SLOTS
    assert 0 <= device.bytes - (slots + 2 * PLAN_BYTES + LENGTHS_BYTES + WORKSPACE_BYTES + pages) < 2**12
    without, windowed = (prefill_inputs(CUDA, cache_config, has_windows) for has_windows in (False, True))
    assert windowed[0] - without[0] == slots
    assert prefill_inputs(CPU, cache_config, True) == (0, 0)


def test_defaults_are_shares_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_plan, "available_host_bytes", lambda: 80 * GIB)
    monkeypatch.setattr(
        decode_plan, "free_bytes", lambda device: 40 * GIB if device.type == "cuda" else 80 * GIB
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert memory_budget(QUEST, CPU, GIB, Ledger()) == MemoryBudget(10 * GIB, 10 * GIB, 32)
    # One pool on the host for each of four GPUs.
    assert memory_budget(QUEST, CUDA, GIB, Ledger()) == MemoryBudget(5 * GIB, 10 * GIB, 64)
    # Large weights leave less than a share.
    assert memory_budget(QUEST, CUDA, 30 * GIB, Ledger()).device_bytes == 5 * GIB
    given = CacheSettings(selector="quest", host_kv_bytes=7, device_kv_bytes=8, max_streams=9)
    assert memory_budget(given, CUDA, GIB, Ledger()) == MemoryBudget(7, 8, 9)


def test_pools_of_all_gpus_together_fit_the_host(tmp_path: Path) -> None:
    """HOST_KV_BYTES is for each GPU."""
    _, _, (host, _) = planned("Qwen3-0.6B", CUDA, 79.1, 200)
    ledger = Ledger(tmp_path)
    ledger.free("host", lambda: int(1.5 * host.total))
    ledger.claim("decode on cuda:0", host)
    with pytest.raises(MemoryExceeded, match="HOST_KV_BYTES"):
        Ledger(tmp_path).claim("decode on cuda:1", host)
