"""What the log says of decode's pools: for checkpoints and machines that people have, by arithmetic."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.plan import HOST_SHARE, MAX_SEQUENCES, default_device_bytes
from hiscore.decoding.memory.pool_report import Pool, pools_of, report_pools
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.decoding.pools.page_needs import capacities
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.models.support import context_limit
from hiscore.parallel.shard import Shard
from hiscore.server.plan import GIB
from hiscore.settings import CacheSettings
from tests.support.geometries import GEOMETRIES, architecture

# Free memory: of the device in GiB (None: the CPU), of the host, and GPUs that share the host's.
H100 = (79.1, 200, 1)
TWO_H100 = (79.1, 200, 2)
GPU_24_GB = (23.5, 64, 1)
CONTAINER = (None, 3.4, 1)

Machine = tuple[float | None, float, int]
Plan = tuple[CacheShape, CacheConfig, torch.dtype]


def plan(name: str, machine: Machine, **settings: Any) -> Plan:
    on_device, on_host, gpus = machine
    kind, dtype = ("cpu", torch.float32) if on_device is None else ("cuda", torch.bfloat16)
    chosen, a = CacheSettings(**settings), architecture(name)
    weights = int(GEOMETRIES[name].parameters * dtype.itemsize)
    budget = MemoryBudget(
        int(HOST_SHARE[kind] * on_host * GIB) // gpus,
        chosen.device_kv_bytes or default_device_bytes(kind, int((on_device or on_host) * GIB), weights),
        MAX_SEQUENCES[kind],
    )
    context = context_limit(a.context_length, chosen.max_context)
    model = ModelShape(a.kv_heads, 2, a.head_dim, a.windows, context)
    return *plan_cache(chosen, model, budget, dtype, 2_048), dtype


def pools(name: str, machine: Machine, **settings: Any) -> dict[str, Pool]:
    return {pool.name: pool for pool in pools_of(*plan(name, machine, **settings))}


@pytest.mark.parametrize(
    ("name", "machine", "settings", "host", "buffers"),
    [
        ("Llama-3.1-8B", H100, {}, (10, "DEVICE_KV_BYTES"), 23),
        ("Llama-3.1-8B", H100, {"max_context": 131_072}, (1, "DEVICE_KV_BYTES"), 4),
        ("Llama-3.1-8B", H100, {"selector": "quest"}, (12, "HOST_KV_BYTES"), 23),
        ("Llama-3.1-8B", TWO_H100, {}, (6, "HOST_KV_BYTES"), 26),
        ("Llama-3.1-8B", GPU_24_GB, {}, (1, "DEVICE_KV_BYTES"), 1),
        ("Qwen3-8B", H100, {}, (9, "DEVICE_KV_BYTES"), 20),
        ("Qwen3-8B", H100, {"max_context": 40_960}, (7, "DEVICE_KV_BYTES"), 18),
        ("Qwen3-8B", GPU_24_GB, {}, (1, "DEVICE_KV_BYTES"), 1),
        ("SmolLM2-135M", CONTAINER, {}, (1, "DEVICE_KV_BYTES"), 1),
    ],
)
def test_how_many_sequences_fit_real_machines(
    name: str, machine: Machine, settings: dict[str, Any], host: tuple[int, str], buffers: int
) -> None:
    found = pools(name, machine, **settings)
    assert (found["host"].sequences, found["host"].setting) == host
    assert found["device buffers"].sequences == buffers
    # What is addressed by pages of the host has as many.
    assert found["dense layers"].sequences == found["index"].sequences == host[0]


def test_bytes_and_tokens_are_those_of_the_geometry() -> None:
    """Llama-3.1-8B: 128 KiB a token, 4 KiB in each of 32 layers, 2 of which are dense."""
    found = pools("Llama-3.1-8B", H100, selector="quest")
    kib = {name: pool.bytes / pool.tokens / 1024 for name, pool in found.items()}
    assert kib["host"] == kib["staging"] == 32 * 4
    assert kib["device buffers"] == 30 * 4
    assert kib["dense layers"] == 2 * 4
    # Two keys for a page of 32 tokens.
    assert kib["index"] == 30 * 2 * 2 / 32
    # Under auto prompts are prefilled into the buffers, which are for all layers then.
    in_place = pools("Llama-3.1-8B", H100)
    assert "staging" not in in_place
    assert in_place["device buffers"].bytes / in_place["device buffers"].tokens == 32 * 4 * 1024


def test_every_pool_is_logged_and_too_few_sequences_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shape, config, dtype = plan("Llama-3.1-8B", TWO_H100)
    report_pools(shape, config, dtype)
    table = caplog.records[0].getMessage().splitlines()
    assert table[0] == "pools of decode, for at most 64 sequences of at most 32768 tokens:"
    assert [line.split("  ")[1] for line in table[1:]] == [
        "host", "device buffers", "dense layers", "index",
    ]  # fmt: skip
    assert " ".join(table[1].split()) == "host 25.00 GiB 204800 tokens 6 sequences HOST_KV_BYTES"
    assert "4 sequences of 32768 tokens fit the device as a whole" in caplog.text
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.split(", fewer than the 64 of MAX_STREAMS")[0] for each in warnings] == [
        "HOST_KV_BYTES has room for 6 sequences of 32768 tokens at once (host, dense layers, index)",
        "DEVICE_KV_BYTES has room for 26 sequences of 32768 tokens at once (device buffers)",
    ]
    # Nothing to warn of where as many sequences may run as fit; staging is for one at a time.
    caplog.clear()
    report_pools(shape, replace(config, max_sequences=6), dtype)
    assert {each.levelno for each in caplog.records} == {logging.INFO}


def test_it_is_said_that_ranks_share_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """The same bytes on each of four ranks hold four times the tokens."""
    caplog.set_level(logging.INFO)
    latents = ModelShape(1, 1, 576, (None,) * 61, 32_768, index_dim=128, top_k=2_048)
    settings, memory = CacheSettings(selector="dsa"), MemoryBudget(61 * 1_152 * 32_768, 2**40, 8)
    for ranks, tokens in ((1, 32_768), (4, 131_072)):
        caplog.clear()
        model = replace(latents, host_share=Shard(0, ranks))
        shape, config = plan_cache(settings, model, memory, torch.bfloat16, 2_048)
        report_pools(shape, config, torch.bfloat16)
        row = " ".join(caplog.records[0].getMessage().splitlines()[1].split())
        assert row == f"host 2.14 GiB {tokens} tokens {ranks} sequences HOST_KV_BYTES"
        assert ("4 ranks share the host's pages" in caplog.text) == (ranks == 4)


def test_dense_has_no_buffers_and_too_small_a_pool_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert "device buffers" not in pools("Llama-3.1-8B", H100, selector="dense")
    caplog.set_level(logging.INFO)
    report_pools(*plan("Llama-3.1-8B", H100, selector="dense"))
    assert "as a whole" not in caplog.text
    of_160_tokens = 160 * 2 * 30 * 3 * 64 * 4
    with pytest.raises(ValueError, match="DEVICE_KV_BYTES is 7372800 bytes, at least"):
        plan("SmolLM2-135M", CONTAINER, selector="dense", device_kv_bytes=of_160_tokens)


@pytest.mark.parametrize(("machine", "named"), [(H100, "DEVICE_KV_BYTES"), (TWO_H100, "HOST_KV_BYTES")])
def test_a_call_is_told_which_setting_bounds_the_hosts_pool(machine: Machine, named: str) -> None:
    """Pages of the host take memory on the device too, so raising HOST_KV_BYTES may change nothing."""
    _, config, _ = plan("Llama-3.1-8B", machine)
    call = DecodeCall(torch.zeros(1, dtype=torch.int32).numpy(), SamplingParams(max_tokens=1), 0.0)
    assert config.host_setting == named
    assert f"({named})" in capacities(call, config)[0][1]


def test_more_memory_for_the_named_setting_is_what_helps() -> None:
    """The control: more of the other one changes nothing."""
    few = CacheSettings(selector="auto")
    a = architecture("Llama-3.1-8B")
    model = ModelShape(a.kv_heads, 2, a.head_dim, a.windows, 32_768)

    def on_host(host: int, device: int) -> tuple[int, str]:
        _, config = plan_cache(few, model, MemoryBudget(host * GIB, device * GIB, 64), torch.bfloat16, 1)
        return config.host_pages, config.host_setting

    by_device, named = on_host(50, 20)
    assert named == "DEVICE_KV_BYTES"
    assert on_host(100, 20)[0] == by_device < on_host(50, 22)[0]
    by_host, named = on_host(20, 20)
    assert named == "HOST_KV_BYTES"
    assert on_host(20, 22)[0] == by_host < on_host(25, 20)[0]
