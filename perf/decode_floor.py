"""One stream over dense keys and values against the time that memory alone would take, and where the rest goes.

usage: python -m perf.decode_floor --out DIR [--geometries qwen3-0.6b,qwen3-8b] [--prompts 1024,8192]

The floor reads every weight and every key and value once, at the bandwidth that the device reaches (--bandwidth).
Steps are timed twice: launched one by one ahead of the device by the engine, and back to back by a bare loop; the
profile is of the latter. Without a GPU a tiny model takes the place, and kernels are not profiled.
"""

import argparse
import gc
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hiscore.decoding.sizing import Memory
from perf import geometry
from perf.decode_drive import Driver
from perf.decode_load import PLENTY, Arm, Bench, Load, build_worker, device, shared_weights
from perf.machine import facts

BANDWIDTH = 4.3e12
"""Bytes a second of an H200 (4.8e12 by its data sheet), as large copies reach them."""
TARGETS = {"qwen3-0.6b": 2.2, "qwen3-8b": 1.5}
PROFILED = 20
SHOWN = 14


def floor_ms(config: dict[str, Any], length: float, bandwidth: float) -> float:
    """Milliseconds to read the weights once, and the keys and values of so many tokens, in bfloat16."""
    row = 2 * config["num_key_value_heads"] * config["head_dim"]
    cached: float = 2 * row * config["num_hidden_layers"] * length
    return 1e3 * (geometry.read_bytes(config) + cached) / bandwidth


def profile(driver: Driver, steps: int) -> list[tuple[str, float, float]]:
    """Microseconds and launches of each kernel, by step, the longest first."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        driver.steps(steps)
        torch.cuda.synchronize()
    found = [(e.key[:90], e.device_time_total / steps, e.count / steps) for e in recorded.key_averages()]
    return sorted((row for row in found if row[1]), key=lambda row: -row[1])


def measure(checkpoint: Path, name: str, prompt: int, tokens: int, bandwidth: float) -> dict[str, Any]:
    """Time per token at batch 1, and its parts."""
    load, arm = Load(1, prompt, tokens), Arm("dense", {"selector": "dense"})
    bench = Bench(checkpoint, arm, load)
    try:
        bench.run(tokens=min(20, tokens))
        runs = [bench.run(seed=seed) for seed in range(3)]
    finally:
        bench.close()
    middle = sorted(runs, key=lambda run: run.tpot_ms)[1]
    floor = floor_ms(geometry.config_of(name), prompt + tokens / 2, bandwidth)
    found: dict[str, Any] = {
        "floor_ms": floor,
        "over_floor": middle.tpot_ms / floor,
        "target": TARGETS.get(name),
    }
    found |= {"engine": asdict(middle)}
    worker = build_worker(checkpoint, arm, Memory(PLENTY, PLENTY, 1))
    try:
        driver = Driver.of_random(worker, checkpoint, [prompt])
        driver.steps(5)
        found["bare_step_ms"] = driver.steps(tokens - 5 - PROFILED if tokens > 60 else 5)
        if device().type == "cuda":
            found["kernels"] = profile(driver, PROFILED)
            found["kernels_ms"] = sum(row[1] for row in found["kernels"]) / 1e3
    finally:
        worker._cache.close()
    return found


def show(name: str, prompt: int, found: dict[str, Any]) -> None:
    print(
        f"{name}, prompt {prompt}: {found['engine']['tpot_ms']:.3f} ms a token, floor {found['floor_ms']:.3f}: "
        f"{found['over_floor']:.2f} x (target {found['target']}); bare loop {found['bare_step_ms']:.3f} ms, "
        f"of these in kernels {found.get('kernels_ms', float('nan')):.3f}",
        flush=True,
    )
    for kernel, us, count in found.get("kernels", [])[:SHOWN]:
        print(f"{us:10.1f} us {count:6.1f} x  {kernel}", flush=True)


def main() -> int:
    rehearsal = device().type != "cuda"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--geometries", default="tiny" if rehearsal else "qwen3-0.6b,qwen3-8b")
    parser.add_argument("--prompts", default="100" if rehearsal else "1024,8192")
    parser.add_argument("--tokens", type=int, default=20 if rehearsal else 200)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes a second")
    options = parser.parse_args()
    if rehearsal:
        print("without a GPU: a rehearsal, kernels are not profiled")
    options.out.mkdir(parents=True, exist_ok=True)
    gpu = None if rehearsal else torch.cuda.get_device_name()
    results: dict[str, Any] = {"machine": facts(gpu, None, None, None), "bandwidth": options.bandwidth}
    for name in options.geometries.split(","):
        prompts = [int(prompt) for prompt in options.prompts.split(",")]
        context = Load(1, max(prompts), options.tokens).context
        with tempfile.TemporaryDirectory() as directory, shared_weights():
            checkpoint = geometry.write_config(name, Path(directory), context)
            for prompt in prompts:
                found = measure(checkpoint, name, prompt, options.tokens, options.bandwidth)
                show(name, prompt, found)
                results[f"{name}, prompt {prompt}"] = found
                (options.out / "decode_floor.json").write_text(json.dumps(results, indent=1))
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
