from dataclasses import replace

import torch

from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings
from perf.decoding.arms import PLENTY
from perf.decoding.oversubscribed import model_shape, request_bytes
from perf.models.geometries import GEOMETRIES


def test_bytes_of_a_request_are_what_a_plan_allocates_for_it() -> None:
    model = model_shape(GEOMETRIES["qwen3-0.6b"], 32_768)
    settings = CacheSettings(selector="quest")
    one = request_bytes(model, settings, 32_768)
    shape, cache_config = plan_cache(settings, model, MemoryBudget(PLENTY, PLENTY, 1), torch.bfloat16, 1)
    allocated = replace(shape, device_pages=cache_config.lru_pages + cache_config.ring_pages).bytes(
        torch.bfloat16
    )
    assert one == {name: allocated[name] for name in one}
    # By hand: two dense layers whole, 4,096 tokens of 26 others.
    assert one["dense_kv"] == 2 * 32_768 * 4_096
    assert one["buffer"] == 26 * 4_096 * 4_096


def test_an_indexer_has_its_keys_on_the_device() -> None:
    model = model_shape(GEOMETRIES["deepseek-v3.2-cut"], 32_768)
    one = request_bytes(model, CacheSettings(selector="dsa"), 32_768)
    # By hand: six layers, keys of 128 numbers of two bytes, latents of 576.
    assert one["index"] == 6 * 32_768 * 256
    assert one["buffer"] == 6 * 4_096 * 1_152
    assert one["dense_kv"] == 0
