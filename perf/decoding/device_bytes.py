"""Device memory of one request by the cache's shapes: dense layers, buffers, index, residency tables."""

from dataclasses import replace
from typing import Any

import torch

from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings
from perf.models.geometries import LATENT

PLENTY = 2**60
OF_REQUESTS = ("dense_kv", "buffer", "index", "device_page_of", "host_page_of", "last_use")


def model_shape(config: dict[str, Any], context: int) -> ModelShape:
    """The shape of a geometry's cache at a context length."""
    windows = (None,) * config["num_hidden_layers"]
    if config["model_type"] not in LATENT:
        return ModelShape(config["num_key_value_heads"], 2, config["head_dim"], windows, context)
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return ModelShape(1, 1, width, windows, context, config["index_head_dim"], top_k=config["index_topk"])


def slot_bytes(model: ModelShape, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes of one token in all layers."""
    return len(model.windows) * model.kv_heads * model.kv_parts * model.head_dim * dtype.itemsize


def request_bytes(
    model: ModelShape, settings: CacheSettings, length: int, dtype: torch.dtype = torch.bfloat16
) -> dict[str, int]:
    """Bytes on the device of one request of `length` tokens, by tensor of the cache."""
    shape, _ = plan_cache(settings, model, MemoryBudget(PLENTY, PLENTY, 1), dtype, prefill_token_budget=1)
    pages = -(-length // shape.page_size)
    device_pages = min(pages, shape.buffer_pages) if shape.sparse_layers else 0
    sizes = replace(shape, host_pages=pages, device_pages=device_pages).bytes(dtype)
    return {name: sizes[name] for name in OF_REQUESTS}
