"""Decoding in one process: time per token by backup, by selector and by batch, and what the copies cost.

usage: python -m perf.decode --out DIR [--geometry qwen3-0.6b] [--prompt 8192] [--tokens 300] [--streams 5]
"""

import argparse
import json
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hiscore.decoding.build import CHUNK, build_worker
from hiscore.decoding.engine import DecodeEngine, Output
from hiscore.decoding.kernel_steps import KernelSteps
from hiscore.decoding.options import parse_decode_options
from hiscore.decoding.sizing import Memory
from hiscore.decoding.stream import DecodeCall
from hiscore.errors import RequestError
from hiscore.settings import CacheSettings
from perf import geometry


@dataclass
class Arrivals:
    """When each stream's tokens came."""

    times: dict[int, list[float]] = field(default_factory=dict)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    errors: list[str] = field(default_factory=list)

    def emit(self, key: int, output: Output | RequestError) -> None:
        if isinstance(output, RequestError):
            self.errors.append(output.message)
            self.ended.release()
            return
        self.times.setdefault(key, []).extend([time.perf_counter()] * len(output.token_ids))
        if output.finish_reason:
            self.ended.release()


@dataclass(frozen=True)
class Load:
    """streams at once, each with a prompt of so many tokens and so many to generate."""

    streams: int
    prompt: int
    tokens: int
    repeats: int = 1


def run(checkpoint: Path, settings: CacheSettings, memory: Memory, load: Load) -> dict[str, Any]:
    """One arm: latencies in milliseconds."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    begun = time.perf_counter()
    worker = build_worker(checkpoint, settings, memory, device, dtype, CHUNK[device.type])
    built = time.perf_counter() - begun
    arrivals = Arrivals()
    engine = DecodeEngine(worker, None, frozenset(), 10_000, arrivals.emit, died=lambda error: None)
    rng = np.random.default_rng(0)
    vocabulary = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    options = parse_decode_options(json.dumps({"max_tokens": load.tokens, "ignore_eos": True}))
    begun = time.perf_counter()
    for key in range(load.streams * load.repeats):
        prompt = rng.integers(0, vocabulary, load.prompt).astype(np.int32)
        engine.submit(DecodeCall(prompt, options, math.inf), key)
    for _ in range(load.streams * load.repeats):
        arrivals.ended.acquire()
    seconds = time.perf_counter() - begun
    stats = engine.stats()
    engine.close()
    if arrivals.errors:
        raise RuntimeError(arrivals.errors[0])
    # Between tokens of one stream, once all of the first ones run.
    first = max(arrivals.times[key][0] for key in range(load.streams))
    gaps = np.concatenate([np.diff([at for at in times if at >= first]) for times in arrivals.times.values()])
    memory_of = worker._cache.shape.bytes(dtype)
    worker._cache.close()
    return {
        "tpot_ms": 1e3 * float(gaps.mean()),
        "itl_p50_ms": 1e3 * statistics.median(gaps.tolist()),
        "itl_p99_ms": 1e3 * float(np.quantile(gaps, 0.99)),
        "ttft_ms": 1e3 * statistics.median(times[0] - begun for times in arrivals.times.values()),
        "tokens_per_s": load.streams * load.repeats * load.tokens / seconds,
        "step_ms_on_device": 1e3 * stats.step_seconds / max(stats.steps, 1),
        "hit_rate": stats.hits / max(stats.hits + stats.misses, 1),
        "captured": stats.captured / max(stats.captured_rows, 1),
        "load_s": built,
        "memory": memory_of,
        "geometry": vars(worker.geometry),
    }


@contextmanager
def left_out(*names: str) -> Any:
    """Copies that are not made: a floor, whose outputs mean nothing."""
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(KernelSteps, name, nothing))
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--geometry", default="qwen3-0.6b")
    parser.add_argument("--prompt", type=int, default=8_192)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--streams", type=int, default=5)
    parser.add_argument("--arms", default="dense,blocking,deferred,no backup,quest,quest no swap")
    options = parser.parse_args()
    checkpoint = Path(tempfile.mkdtemp())
    geometry.write(options.geometry, checkpoint, device="cuda" if torch.cuda.is_available() else "cpu")
    memory = Memory(host=24 * 2**30, device=24 * 2**30, streams=options.streams)
    load = Load(options.streams, options.prompt, options.tokens)
    results: dict[str, Any] = {"load": vars(load), "geometry": options.geometry}
    if torch.cuda.is_available():
        results["device"] = torch.cuda.get_device_name()
    for arm in options.arms.split(","):
        selector = "quest" if arm.startswith("quest") else "dense"
        backup = arm if arm in ("blocking", "deferred") else "ring"
        skipped = {"no backup": ["back_up"], "quest no swap": ["_copy"]}.get(arm, [])
        with left_out(*skipped):
            found = run(checkpoint, CacheSettings(selector=selector, backup=backup), memory, load)
        results[arm] = found
        shown = {key: round(value, 3) for key, value in found.items() if isinstance(value, float)}
        print(f"{arm:14s} {shown}", flush=True)
        torch.cuda.empty_cache()
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "decode.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
