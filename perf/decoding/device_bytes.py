"""Device memory of one request, dense and with a selector, computed from the cache's shapes.

usage: python -m perf.decoding.device_bytes [--length 32768] [--out DIR]

Counts everything that grows with requests: dense layers, buffers, index, residency tables. Staging, shared by all
requests, is listed separately. "Dense" is keys and values (or latents) only. A checkpoint's own indexer needs its
keys however much is resident, so the second ratio counts them on both sides.
"""

import sys
from dataclasses import replace
from typing import Any

import torch

from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings, Selector
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, write_json

PLENTY = 2**60
OF_REQUESTS = ("dense_kv", "buffer", "index", "device_page_of", "host_page_of", "last_use")
TARGET = 4.6


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


def table(length: int) -> dict[str, Any]:
    """For each geometry and selector: bytes by tensor, their sum, and how many times smaller than dense it is."""
    found: dict[str, Any] = {}
    for name, config in GEOMETRIES.items():
        if name.startswith("tiny"):
            continue
        model = model_shape(config, length)
        dense = sum(request_bytes(model, CacheSettings(selector="dense"), length).values())
        rows: dict[str, Any] = {"staging": slot_bytes(model) * length}
        latent = config["model_type"] in LATENT
        selectors: tuple[Selector, ...] = ("dsa",) if latent else ("quest", "exact")
        for selector in selectors:
            parts = request_bytes(model, CacheSettings(selector=selector), length)
            total = sum(parts.values())
            resident = dense + (parts["index"] if selector == "dsa" else 0)
            rows[selector] = {
                **parts,
                "total": total,
                "dense": dense,
                "smaller": dense / total,
                "smaller_with_index": resident / total,
            }
        found[name] = rows
    return found


def main() -> int:
    """Print the table; write decode_bytes.json with --out."""
    parser = arguments(__doc__, "decode_bytes.json", required=False)
    parser.add_argument("--length", type=int, default=32_768)
    options = parser.parse_args()
    found = table(options.length)
    print(f"MiB of one request of {options.length} tokens on the device, bfloat16, top 2048 of 4096:")
    for name, rows in found.items():
        for selector, row in rows.items():
            if selector != "staging":
                parts = ", ".join(f"{part} {row[part] / 2**20:.1f}" for part in OF_REQUESTS)
                print(
                    f"{name:18s} {selector:6s} dense {row['dense'] / 2**20:7.1f}, {row['total'] / 2**20:7.1f} "
                    f"({parts}): {row['smaller']:.2f} x smaller, {row['smaller_with_index']:.2f} x"
                )
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "decode_bytes.json", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
