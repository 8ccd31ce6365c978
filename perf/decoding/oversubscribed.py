"""Tokens per second of more long sequences than fit the device densely: dense, where most wait, and a selector.

usage: python -m perf.decoding.oversubscribed --out DIR [--geometry qwen3-0.6b] [--fit 3] [--times 5]
           [--prompt 32000] [--tokens 768] [--arms 2048:4096:2,2048:5120:0]

The budget DEVICE_KV_BYTES (dense layers, buffers, index and tables, and staging where there is one) holds `fit`
dense sequences; `fit` x `times` requests are sent at once. Two rates are reported: of the whole load, prefill
included, and of the decode steps only.
"""

import gc
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings
from perf.decoding.arms import PLENTY, Arm, dtype, shared_weights
from perf.decoding.engine_load import Bench, Load
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, write_json

OF_REQUESTS = ("dense_kv", "buffer", "index", "device_page_of", "host_page_of", "last_use")


def model_shape(config: dict[str, Any], context: int) -> ModelShape:
    """The shape of a geometry's cache at a context length."""
    windows = (None,) * config["num_hidden_layers"]
    if config["model_type"] not in LATENT:
        return ModelShape(config["num_key_value_heads"], 2, config["head_dim"], windows, context)
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return ModelShape(1, 1, width, windows, context, config["index_head_dim"], top_k=config["index_topk"])


def request_bytes(
    model: ModelShape, settings: CacheSettings, length: int, dtype: torch.dtype = torch.bfloat16
) -> dict[str, int]:
    """Bytes on the device of one request of `length` tokens, by tensor of the cache."""
    shape, _ = plan_cache(settings, model, MemoryBudget(PLENTY, PLENTY, 1), dtype, prefill_token_budget=1)
    pages = -(-length // shape.page_size)
    device_pages = min(pages, shape.buffer_pages) if shape.sparse_layers else 0
    sizes = replace(shape, host_pages=pages, device_pages=device_pages).bytes(dtype)
    return {name: sizes[name] for name in OF_REQUESTS}


TARGET = 2.5


def budget(config: dict[str, Any], load: Load, fit: int) -> int:
    """Bytes of `fit` dense sequences of the load."""
    model = model_shape(config, load.context)
    one = request_bytes(model, CacheSettings(selector="dense"), load.context, dtype())
    return fit * sum(one.values())


def main() -> int:
    """Measure; writes decode_oversubscribed.json after every arm."""
    parser = arguments(__doc__, "decode_oversubscribed.json")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-0.6b")
    parser.add_argument("--fit", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=768)
    parser.add_argument(
        "--arms",
        default="2048:3072:2,2048:4096:1,2048:5120:0",
        help="top-k:buffer tokens:dense layers of each arm, comma-separated",
    )
    options = parser.parse_args()
    config = GEOMETRIES[options.geometry]
    load = Load(options.fit * options.times, options.prompt, options.tokens)
    memory = MemoryBudget(PLENTY, budget(config, load, options.fit), load.streams)
    own = "dsa" if config["model_type"] in LATENT else "quest"
    arms = [Arm("dense", {"selector": "dense"})]
    for arm in options.arms.split(","):
        top_k, buffer, layers = map(int, arm.split(":"))
        sizes = {"sparse_top_k": top_k, "device_buffer_size": buffer}
        dense_layers = f", {layers} dense layers" if own == "quest" else ""
        name = f"{own}, top {top_k}, buffer {buffer}{dense_layers}"
        arms.append(Arm(name, {"selector": own} | sizes, dense_layers=layers))
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "load": asdict(load),
        "device_kv_bytes": memory.device_bytes,
        "arms": {},
    }
    print(
        f"{options.geometry}: {load.streams} streams of {load.prompt} + {load.tokens} tokens, "
        f"DEVICE_KV_BYTES={memory.device_bytes} ({memory.device_bytes / 2**30:.2f} GiB) "
        f"hold {options.fit} densely",
        flush=True,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(options.geometry, Path(directory), load.context)
        for arm in arms:
            bench = Bench(checkpoint, arm, load, memory)
            try:
                run, held = bench.run(), bench.device_bytes
            finally:
                bench.close()
            results["arms"][arm.name] = asdict(run) | {"device_bytes": held, "load_s": bench.load_s}
            print(
                f"  {arm.name:15s} {run.tokens_per_s:8.1f} tokens/s, steps alone {run.decode_tokens_per_s:8.1f}; "
                f"{run.rows_per_step:.1f} rows a step of {run.step_ms:.2f} ms, hit rate {run.hit_rate:.4f}, "
                f"{run.preemptions} preemptions, {run.seconds:.1f} s; "
                f"{sum(held.values()) / 2**30:.2f} GiB on the device",
                flush=True,
            )
            del bench
            gc.collect()
            torch.cuda.empty_cache()
            write_json(options.out / "decode_oversubscribed.json", results)
    (_, dense), *others = results["arms"].items()
    for name, other in others:
        whole, steps = (other[rate] / dense[rate] for rate in ("tokens_per_s", "decode_tokens_per_s"))
        print(f"  {name}: {whole:.2f} x, steps alone {steps:.2f} x (target {TARGET})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
