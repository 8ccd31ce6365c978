"""A token's time, tokens/s and first tokens at the loads that other engines were measured with.

usage: python -m perf.decoding.peer_loads --out DIR [--geometry qwen3-0.6b] [--selectors auto,dense]
           [--sample '{"temperature": 0.8, "top_p": 0.95}'] [--loads N,...] [--prefix-cache]

In this process, greedy unless --sample is given; all keys and values fit the device. Each of the callers sends
its next prompt when its last one ended. Weights are random, with a real model's geometry. A first token's time
and a token's are those of each request, as another engine's script takes them. Needs a CUDA GPU.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import Arm, build_worker, shared_weights
from perf.decoding.closed_loop import Callers, ClosedLoop
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, by_comma, write_json

GIB = 2**30


WARM_UP = ClosedLoop(8, 4, 1_024, 64)
SHORT = (ClosedLoop(8, 1, 1_024, 128), ClosedLoop(48, 16, 1_024, 128), ClosedLoop(96, 32, 1_024, 128))
ALONE = ClosedLoop(3, 1, 8_192, 256)
LOADS: dict[str, tuple[ClosedLoop, ...]] = {
    "qwen3-0.6b": (*SHORT, ClosedLoop(10, 5, 8_192, 1_500), ALONE),
    "qwen3-8b": (*SHORT, ClosedLoop(5, 5, 8_192, 500), ALONE),
}
CONTEXT = 16_384


def measure(
    checkpoint: Path, arm: Arm, loads: tuple[ClosedLoop, ...], vocabulary: int
) -> Iterator[tuple[str, Any]]:
    """Each load's numbers as soon as it ended."""
    worker = build_worker(checkpoint, arm, MemoryBudget(24 * GIB, 40 * GIB, 32))
    callers = Callers(arm.sampling)
    engine = DecodeEngine(worker, None, frozenset(), 10_000, callers.emit)
    callers.serve(engine)
    try:
        rng = np.random.default_rng(0)
        callers.run(WARM_UP, vocabulary, rng)
        gc.collect()
        gc.freeze()  # as the model does after its start
        for load in loads:
            yield str(load), callers.run(load, vocabulary, rng)
    finally:
        gc.unfreeze()
        engine.close()


def main() -> int:
    """Measure; writes decode_peer_loads.json after every load."""
    parser = arguments(__doc__, "decode_peer_loads-GEOMETRY.json")
    parser.add_argument("--geometry", choices=tuple(LOADS), default="qwen3-0.6b")
    parser.add_argument("--selectors", type=by_comma, default=["auto", "dense"])
    parser.add_argument("--sample", type=json.loads, default={}, help="sampling parameters, JSON")
    parser.add_argument("--loads", type=by_comma, help="which of the loads, counted from 0")
    parser.add_argument("--prefix-cache", action="store_true", help="keep what sequences leave")
    options = parser.parse_args()
    loads = LOADS[options.geometry]
    if options.loads:
        loads = tuple(loads[int(index)] for index in options.loads)
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "sampling": options.sample,
        "prefix_cache": options.prefix_cache,
        "loads": [asdict(load) for load in loads],
        "arms": {},
    }
    vocabulary = GEOMETRIES[options.geometry]["vocab_size"]
    kinds = ["-sampled"] * bool(options.sample) + ["-prefix-cache"] * options.prefix_cache
    path = options.out / f"decode_peer_loads-{options.geometry}{''.join(kinds)}.json"
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(options.geometry, Path(directory), CONTEXT)
        for selector in options.selectors:
            settings = {"selector": selector, "prefix_cache": options.prefix_cache}
            arm = Arm(selector, settings, sampling=options.sample)
            found = results["arms"].setdefault(selector, {})
            for name, numbers in measure(checkpoint, arm, loads, vocabulary):
                found[name] = numbers
                print(
                    f"{selector:6s} {name}: first token p50 {numbers['ttft_p50_ms']:.1f} ms, "
                    f"a token {numbers['tpot_mean_ms']:.3f} ms, {numbers['tokens_per_s']:.0f} tokens/s",
                    flush=True,
                )
                write_json(path, results)
            gc.collect()
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
