"""Long prompts, from one sequence to far more than the device holds densely: SELECTOR=auto against dense.

usage: python -m perf.decoding.long_prompts --out DIR [--loads 1,2,4,8,16,32,54] [--fit 6] [--prompt 32768]
           [--tokens 2048] [--sizes 2048:4096:0] [--geometry qwen3-0.6b-half] [--host-gib 100]
           [--checkpoint DIR]

A grid as published for another engine (GitHub, sgl-project/sglang#33075), of whose decoding node the steady
rate is reported: prompts are prefilled elsewhere there. So it is shown beside the rate of the whole load: see
`steady`. Both arms have the same DEVICE_KV_BYTES, which hold `fit` dense sequences; under auto the index and
the pages that a prompt is prefilled into are part of it. All requests of a load are sent at once, each with a
random prompt, which is prefilled as any other. With --checkpoint, a trained model's weights take the place of
random ones, and pieces of Python's reference that of random tokens: what such a model selects changes less from
step to step. The arms stay in memory side by side and take turns: loads that fit densely, whose times are
compared to a percent, three times.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from hiscore.arrays import Int32
from hiscore.checkpoint import resolve
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings
from perf.decoding.arms import PLENTY, Arm, dtype, shared_weights
from perf.decoding.engine_load import Bench, Load, Run
from perf.machine.facts import process_facts
from perf.machine.interleave import in_turns
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, by_comma, write_json


def with_context(checkpoint: Path, context: int, directory: Path) -> Path:
    """Link a checkpoint's files, beside a config.json that lengthens its context by YaRN where it is shorter.

    What such a model says is worth little; its weights are a trained model's.

    Returns:
        The new directory, or the checkpoint itself if its context is long enough.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    trained = config["max_position_embeddings"]
    if context <= trained:
        return checkpoint
    directory.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file.resolve())
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    config[key] = (config.get(key) or {}) | {
        "rope_type": "yarn",
        "factor": context / trained,
        "original_max_position_embeddings": trained,
    }
    config["max_position_embeddings"] = context
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    return directory


OF_SEQUENCES = ("dense_kv", "buffer", "index", "device_page_of", "host_page_of", "last_use")


def budget(config: dict[str, Any], load: Load, fit: int) -> int:
    """Bytes on the device of `fit` dense sequences of the load."""
    windows = (None,) * config["num_hidden_layers"]
    model = ModelShape(config["num_key_value_heads"], 2, config["head_dim"], windows, load.context)
    settings, memory = CacheSettings(selector="dense"), MemoryBudget(PLENTY, PLENTY, 1)
    shape, _ = plan_cache(settings, model, memory, dtype(), prefill_token_budget=1)
    pages = -(-load.context // shape.page_size)
    sizes = replace(shape, host_pages=pages, device_pages=0).bytes(dtype())
    return fit * sum(sizes[name] for name in OF_SEQUENCES)


GIB = 2**30
PUBLISHED = {1: 0.92, 2: 0.92, 4: 0.94, 8: 1.19, 16: 1.66, 32: 2.43, 54: 3.00}
"""Steady tokens/s over those of dense, by requests at once: prompts are prefilled by other machines there."""
AIMS = {1: 0.98, 2: 0.98, 4: 0.98, 54: 3.0}
ROUNDS = 3


def compare(benches: Mapping[str, Bench], load: Load, rounds: int) -> dict[str, Any]:
    """Medians over rounds of each arm, and of the ratios of the second arm's rates to the first's."""
    runs: dict[str, list[Run]] = {name: [] for name in benches}
    for index, name in in_turns(benches, rounds):
        runs[name].append(benches[name].run(seed=index, load=load))
    dense, other = runs.values()
    found: dict[str, Any] = {
        name: {key: statistics.median(row[key] for row in map(asdict, of)) for key in asdict(of[0])}
        for name, of in runs.items()
    }
    for rate in ("tokens_per_s", "decode_tokens_per_s", "steady_tokens_per_s"):
        ratios = [getattr(b, rate) / getattr(a, rate) for a, b in zip(dense, other, strict=True)]
        found[f"{rate}_ratio"] = statistics.median(ratios)
    return found | {"rounds": rounds, "published_ratio": PUBLISHED.get(load.streams)}


def show(load: Load, found: Mapping[str, Any]) -> None:
    """Print a line for each arm of a load, and one that compares them."""
    for name in ("dense", "auto"):
        row = found[name]
        print(
            f"{load.streams:3d} at once, {name:5s} {row['tokens_per_s']:8.1f} tokens/s, steps alone "
            f"{row['decode_tokens_per_s']:8.1f}, steady {row['steady_tokens_per_s']:8.1f} of "
            f"{row['steady_rows']:.1f} rows; {row['rows_per_step']:.1f} rows a step of "
            f"{row['step_ms']:.2f} ms, first token {row['ttft_ms']:.0f} ms, hit rate {row['hit_rate']:.4f}, "
            f"{row['preemptions']:.0f} preemptions, {row['seconds']:.1f} s",
            flush=True,
        )
    aim, published = AIMS.get(load.streams), PUBLISHED.get(load.streams)
    print(
        f"{load.streams:3d} at once: {found['tokens_per_s_ratio']:.3f} x, steps alone "
        f"{found['decode_tokens_per_s_ratio']:.3f} x, steady {found['steady_tokens_per_s_ratio']:.3f} x"
        + (f" (published {published}" + (f", aim {aim})" if aim else ")") if published else ""),
        flush=True,
    )


def source(options: argparse.Namespace, context: int, directory: Path) -> tuple[Path, Int32 | None]:
    """The checkpoint, and the text from which prompts are cut: a geometry has none."""
    if not options.checkpoint:
        return random_checkpoint.write_config(options.geometry, directory / "drawn", context), None
    from pydoc_data.topics import topics

    checkpoint = with_context(resolve(options.checkpoint), context, directory / "longer")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer("\n\n".join(topics.values()), add_special_tokens=False, verbose=False).input_ids
    return checkpoint, np.array(ids, np.int32)


def main() -> int:
    """Measure; writes decode_long_prompts.json after every load."""
    parser = arguments(__doc__, "decode_long_prompts.json")
    grouped = [name for name, config in GEOMETRIES.items() if config["model_type"] not in LATENT]
    parser.add_argument("--geometry", choices=grouped, default="qwen3-0.6b-half")
    parser.add_argument("--loads", type=by_comma, default=[*map(str, PUBLISHED)])
    parser.add_argument("--fit", type=int, default=6)
    parser.add_argument("--prompt", type=int, default=32_768)
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument(
        "--sizes",
        default="2048:4096:0",
        help="SPARSE_TOP_K:DEVICE_BUFFER_SIZE:dense layers of auto",
    )
    parser.add_argument("--host-gib", type=float, default=100, help="HOST_KV_BYTES")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of loads that fit densely")
    parser.add_argument("--checkpoint", default="", help="directory or name, instead of a geometry")
    options = parser.parse_args()
    loads = [Load(int(streams), options.prompt, options.tokens) for streams in options.loads]
    most = max(loads, key=lambda load: load.streams)
    top_k, buffer, dense_layers = map(int, options.sizes.split(":"))
    sizes = {"sparse_top_k": top_k, "device_buffer_size": buffer}
    auto = Arm("auto", {"selector": "auto"} | sizes, dense_layers=dense_layers)
    arms = (Arm("dense", {"selector": "dense"}), auto)
    benches: dict[str, Bench] = {}
    with tempfile.TemporaryDirectory() as directory, shared_weights(drawn=not options.checkpoint):
        checkpoint, text = source(options, most.context, Path(directory))
        config = json.loads((checkpoint / "config.json").read_text())
        device_bytes = budget(config, most, options.fit)
        memory = MemoryBudget(int(options.host_gib * GIB), device_bytes, most.streams)
        results: dict[str, Any] = {
            "machine": process_facts(options.commit),
            "model": options.checkpoint or options.geometry,
            "prompt": options.prompt,
            "tokens": options.tokens,
            "sizes": sizes | {"dense_layers": dense_layers},
            "device_kv_bytes": device_bytes,
            "pools": {},
            "loads": {},
        }
        print(
            f"{results['model']}: prompts of {options.prompt} tokens, {options.tokens} to generate, "
            f"DEVICE_KV_BYTES={device_bytes} ({device_bytes / GIB:.2f} GiB) hold {options.fit} densely",
            flush=True,
        )
        try:
            for arm in arms:
                bench = benches[arm.name] = Bench(checkpoint, arm, most, memory, text)
                held = bench.device_bytes | {"host": bench.worker._cache.host_kv.nbytes}
                results["pools"][arm.name] = held | {"load_s": bench.load_s}
                print(
                    f"  {arm.name:5s} {sum(bench.device_bytes.values()) / GIB:.2f} GiB on the device, "
                    f"{held['host'] / GIB:.2f} on the host, ready after {bench.load_s:.0f} s",
                    flush=True,
                )
                # With everything that the loads will do, spills among it, so that kernels are compiled.
                bench.run(load=Load(min(most.streams, 2 * options.fit), options.prompt, 16))
            for load in loads:
                found = compare(benches, load, options.rounds if load.streams <= options.fit else 1)
                results["loads"][load.streams] = found
                show(load, found)
                write_json(options.out / "decode_long_prompts.json", results)
        finally:
            for bench in benches.values():
                bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
