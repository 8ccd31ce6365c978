"""The scorer's plan: one pool, as small as a call of several forwards allows, for checkpoints of every size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hiscore.models.support import context_limit
from hiscore.scoring.memory import (
    CPU_ATTENTION_BYTES,
    PoolSizes,
    default_cache_bytes,
    plan_memory,
    pool_sizes,
    slot_bytes,
)
from hiscore.scoring.packing.packing import pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.server.plan import GIB, MemoryExceeded, MemoryLine, MemoryPlan
from tests.support.geometries import GEOMETRIES, architecture

BUDGET = 16_384
ROOT = Path(__file__).resolve().parents[3]


def plan(name: str, device_gib: float, max_context: int | None = None, place: str = "cuda:0") -> MemoryPlan:
    """At the defaults, on an empty device."""
    a, free = architecture(name), int(device_gib * GIB)
    a = replace(a, context_length=context_limit(a.context_length, max_context))
    number_bytes = 2 if place.startswith("cuda") else 4
    sizes = pool_sizes(a, number_bytes, BUDGET, default_cache_bytes(free))
    weights = MemoryLine("weights", int(GEOMETRIES[name].parameters * number_bytes))
    return plan_memory(place, a, number_bytes, weights, BUDGET, sizes)


def pool_gib(planned: MemoryPlan) -> float:
    return next(line.bytes for line in planned.lines if line.name == "keys and values") / GIB


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name != "SmolLM2-135M"])
def test_the_pool_is_sized_for_one_call_of_the_longest_sequences(name: str) -> None:
    """And the page on memory says so."""
    a = architecture(name)
    whole, short = pool_gib(plan(name, 1_000)), pool_gib(plan(name, 1_000, 8_192))
    tokens = 32_768 + BUDGET
    assert whole == pytest.approx(tokens * slot_bytes(a, 2) / GIB, rel=0.01)
    row = f"| {name} | {a.context_length:,} | {whole:.1f} GiB | {short:.1f} GiB |"
    assert row in (ROOT / "docs" / "memory.md").read_text()


def test_the_page_on_memory_shows_a_true_table() -> None:
    planned = plan("Qwen3-8B", 78.9)
    assert planned.table(int(78.9 * GIB)) in (ROOT / "docs" / "memory.md").read_text()


def test_attention_on_a_cpu_is_planned_once() -> None:
    a, weights = architecture("SmolLM2-135M"), MemoryLine("weights", 0)

    def activations(place: str) -> int:
        planned = plan_memory(place, a, 4, weights, BUDGET, PoolSizes(1, 1))
        return next(line.bytes for line in planned.lines if line.name == "activations")

    assert activations("cpu") - activations("cuda:0") == CPU_ATTENTION_BYTES


def test_a_pool_is_what_is_asked_for_where_that_is_more() -> None:
    a = architecture("Qwen3-0.6B")
    sizes = pool_sizes(a, 2, BUDGET, 64 * GIB)
    assert sizes.pages == 64 * GIB // (PAGE * slot_bytes(a, 2))
    assert sizes.reserve == pool_reserve(a.context_length, BUDGET)


@pytest.mark.parametrize(
    ("name", "gpu", "max_context", "fits"),
    [
        ("Qwen3-0.6B", 23.5, None, True),
        ("Qwen3-4B-2507", 23.5, None, True),
        ("Qwen3-8B", 23.5, None, False),
        ("Qwen3-8B", 23.5, 8_192, True),
        ("Llama-3.1-8B", 23.5, None, False),
        ("Llama-3.1-8B", 23.5, 8_192, True),
        ("Llama-3.1-8B", 79.0, None, True),
        ("Mistral-Nemo-12B", 79.0, None, True),
        ("Mistral-Nemo-12B", 79.0, 1_024_000, False),
        ("Qwen3-30B-A3B", 79.0, None, True),
        ("Qwen3-30B-A3B", 139.8, None, True),
        ("Qwen3-30B-A3B", 23.5, 1_024, False),
    ],
)
def test_only_what_fits_starts(name: str, gpu: float, max_context: int | None, fits: bool) -> None:
    planned = plan(name, gpu, max_context)
    if fits:
        planned.check(int(gpu * GIB))
    else:
        with pytest.raises(MemoryExceeded, match="with a lower MAX_"):
            planned.check(int(gpu * GIB))


def prompt(rng: np.random.Generator, query: int, items: list[int]) -> MultiItemPrompt:
    tokens = rng.integers(0, 2**31 - 1, query + sum(items)).astype(np.int32)
    return MultiItemPrompt(tokens, query, np.array(items, np.int64))


def test_without_several_forwards_queries_have_the_whole_pool() -> None:
    """A pool that is all reserve caches nothing during a batch of several forwards, and everything otherwise."""
    rng, reserve = np.random.default_rng(0), pool_reserve(64, 128)
    cache = QueryCache(reserve, reserve)
    small = prompt(rng, 64, [8, 8])
    for cached in (0, 64):
        assert pack([small], 128, cache).cached_tokens == (cached,)
    large = prompt(rng, 32, [30] * 20)
    assert len(pack([large], 128, cache).forwards) > 1
    # It took the pages that it needed, and no more: what it left is still cached.
    assert pack([small], 128, cache).cached_tokens[0] in (0, 32, 64)
    assert pack([small], 128, cache).cached_tokens == (64,)


def test_a_batch_reserves_what_its_own_sequences_need() -> None:
    """Queries of short calls stay cached while a call of several forwards runs."""
    rng, reserve = np.random.default_rng(0), pool_reserve(4_096, 256)
    cache = QueryCache(reserve, reserve)
    call = prompt(rng, 128, [16] * 40)
    assert pack([call], 256, cache).cached_tokens == (0,)
    assert pack([call], 256, cache).cached_tokens == (128,)
    # The control: with the reserve of the longest sequence there is no room for it.
    full = QueryCache(reserve, reserve)
    full.begin_batch = lambda reserve, hits: None  # type: ignore[method-assign]
    for _ in range(2):
        assert pack([call], 256, full).cached_tokens == (0,)
