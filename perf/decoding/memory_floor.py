"""A decode step over dense keys and values against its memory floor, and which kernels take the rest.

usage: python -m perf.decoding.memory_floor --out DIR [--geometries qwen3-0.6b,qwen3-8b] [--prompts 1024,8192]
           [--selector quest --streams 5]

The floor is the time to read every weight, key and value once at --bandwidth. Steps are timed twice: launched by
the engine, and back to back by a bare loop. The profile is of the bare loop; kernels there may start early and
wait for the previous one, so their times add up to more than the step. Without a GPU a tiny model takes its place
and kernels are not profiled.
"""

import gc
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import PLENTY, Arm, build_worker, device, shared_weights
from perf.decoding.engine_load import Bench, Load
from perf.decoding.worker_driver import Driver
from perf.machine.facts import process_facts
from perf.machine.kernel_times import kernel_times
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, write_json

BANDWIDTH = 4.3e12
"""Bytes per second that large copies reach on an H200; its data sheet says 4.8e12."""
TARGETS = {"qwen3-0.6b": 2.2, "qwen3-8b": 1.5}
PROFILED = 20
SHOWN = 14


def floor_ms(config: dict[str, Any], length: float, bandwidth: float) -> float:
    """Milliseconds to read the weights and the keys and values of `length` tokens once, in bfloat16."""
    row = 2 * config["num_key_value_heads"] * config["head_dim"]
    cached: float = 2 * row * config["num_hidden_layers"] * length
    return 1e3 * (random_checkpoint.read_bytes(config) + cached) / bandwidth


def measure(checkpoint: Path, name: str, arm: Arm, load: Load, bandwidth: float) -> dict[str, Any]:
    """Time per token and its parts; with a floor for dense sequences."""
    bench = Bench(checkpoint, arm, load)
    try:
        bench.run(load=replace(load, tokens=min(20, load.tokens)))
        runs = [bench.run(seed=seed) for seed in range(3)]
    finally:
        bench.close()
    middle = sorted(runs, key=lambda run: run.tpot_ms)[1]
    found: dict[str, Any] = {
        "target": TARGETS.get(name) if load.streams == 1 else None,
        "engine": asdict(middle),
    }
    if arm.settings["selector"] == "dense":
        cached = load.streams * (load.prompt + load.tokens / 2)
        found["floor_ms"] = floor_ms(random_checkpoint.config_of(name), cached, bandwidth)
        # Not the mean: it includes the wait of the first step for the prompt's copy to the host.
        found["over_floor"] = middle.itl_p50_ms / found["floor_ms"]
    worker = build_worker(checkpoint, arm, MemoryBudget(PLENTY, PLENTY, load.streams))
    driver = Driver.of_random(worker, checkpoint, [load.prompt] * load.streams)
    driver.steps(5)
    found["bare_step_ms"] = driver.steps(load.tokens - 5 - PROFILED if load.tokens > 60 else 5)
    if device().type == "cuda":
        found["kernels"] = kernel_times(lambda: driver.steps(PROFILED), PROFILED)
    return found


def show(title: str, found: dict[str, Any]) -> None:
    """Print the times and the longest kernels."""
    floor = ""
    if "floor_ms" in found:
        floor = f"floor {found['floor_ms']:.3f}: {found['over_floor']:.2f} x (target {found['target']}); "
    print(
        f"{title}: {found['engine']['itl_p50_ms']:.3f} ms between tokens (p50), {floor}bare loop "
        f"{found['bare_step_ms']:.3f} ms",
        flush=True,
    )
    for kernel, us, count in found.get("kernels", [])[:SHOWN]:
        print(f"{us:10.1f} us {count:6.1f} x  {kernel}", flush=True)


def main() -> int:
    """Measure; writes decode_floor-SELECTOR.json after every case."""
    rehearsal = device().type != "cuda"
    parser = arguments(__doc__, "decode_floor-SELECTOR.json")
    parser.add_argument("--geometries", default="tiny" if rehearsal else "qwen3-0.6b,qwen3-8b")
    parser.add_argument("--prompts", default="100" if rehearsal else "1024,8192")
    parser.add_argument("--tokens", type=int, default=20 if rehearsal else 200)
    parser.add_argument("--selector", default="dense", choices=("dense", "quest", "exact"))
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes a second")
    options = parser.parse_args()
    if rehearsal:
        print("without a GPU: a rehearsal, kernels are not profiled")
    if any(GEOMETRIES[name]["model_type"] in LATENT for name in options.geometries.split(",")):
        parser.error("the floor is only known for keys and values, not for latents")
    top_k = 64 if rehearsal else 2_048
    sizes = {"sparse_top_k": top_k, "device_buffer_size": 2 * top_k}
    arm = Arm(
        options.selector, {"selector": options.selector} | (sizes if options.selector != "dense" else {})
    )
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": process_facts(options.commit), "bandwidth": options.bandwidth}
    for name in options.geometries.split(","):
        prompts = [int(prompt) for prompt in options.prompts.split(",")]
        context = Load(1, max(prompts), options.tokens).context
        with tempfile.TemporaryDirectory() as directory, shared_weights():
            checkpoint = random_checkpoint.write_config(name, Path(directory), context)
            for prompt in prompts:
                load = Load(options.streams, prompt, options.tokens)
                found = measure(checkpoint, name, arm, load, options.bandwidth)
                title = f"{name}, {arm.name}, {load.streams} of {prompt} tokens"
                show(title, found)
                results[title] = found
                write_json(options.out / f"decode_floor-{arm.name}.json", results)
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
