"""A token's time, tokens/s and first tokens at the loads that other engines were measured with.

usage: python -m perf.decoding.peer_loads --out DIR [--geometry qwen3-0.6b] [--selectors auto,dense]
           [--sample '{"temperature": 0.8, "top_p": 0.95}'] [--loads N,...]

In this process, greedy unless --sample is given; all keys and values fit the device. Each of the callers sends
its next prompt when its last one ended. Weights are random, with a real model's geometry. A first token's time
and a token's are those of each request, as another engine's script takes them. Without a GPU a tiny model takes
its place, as a rehearsal whose numbers mean nothing.
"""

import gc
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Int32
from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.kv_cache.sizing import MemoryBudget
from hiscore.decoding.sampling_params import parse_sampling_params
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.errors import RequestError
from perf.decoding.engine_load import Arm, build_worker, close, shared_weights
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, by_comma, write_json

GIB = 2**30


@dataclass(frozen=True)
class ClosedLoop:
    """`count` requests, `at_once` of them in flight."""

    count: int
    at_once: int
    prompt: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.prompt} in, {self.tokens} out, {self.at_once} at once"


WARM_UP = ClosedLoop(8, 4, 1_024, 64)
SHORT = (ClosedLoop(8, 1, 1_024, 128), ClosedLoop(48, 16, 1_024, 128), ClosedLoop(96, 32, 1_024, 128))
ALONE = ClosedLoop(3, 1, 8_192, 256)
LOADS = {
    "qwen3-0.6b": (*SHORT, ClosedLoop(10, 5, 8_192, 1_500), ALONE),
    "qwen3-8b": (*SHORT, ClosedLoop(5, 5, 8_192, 500), ALONE),
    "tiny": (ClosedLoop(2, 1, 64, 8), ClosedLoop(4, 2, 64, 8)),
}
CONTEXTS = {"qwen3-0.6b": 16_384, "qwen3-8b": 16_384, "tiny": 256}


@dataclass
class Request:
    """When a request was sent and its tokens came."""

    sent: float
    times: list[float] = field(default_factory=list)


class Callers:
    """Sends a load's requests, the next when one has ended."""

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        self._sampling = sampling
        self._lock = threading.Lock()
        self._engine: DecodeEngine | None = None
        self._left: Iterator[Int32] = iter(())
        self._requests: list[Request] = []
        self._error: RequestError | None = None
        self._over = threading.Semaphore(0)

    def serve(self, engine: DecodeEngine) -> None:
        """Take an engine, whose `emit` is this object's."""
        self._engine = engine

    def emit(self, key: int, output: Output | RequestError) -> None:
        """Tokens of a request, or its end."""
        now = time.perf_counter()
        if isinstance(output, RequestError):
            self._error = output
            self._over.release()
            return
        self._requests[key].times += [now] * len(output.token_ids)
        if output.finish_reason:
            self._over.release()
            self._next()

    def _next(self) -> None:
        assert self._engine
        with self._lock:
            prompt = next(self._left, None)
            if prompt is None:
                return
            self._requests.append(Request(time.perf_counter()))
            key = len(self._requests) - 1
        self._engine.submit(DecodeCall(prompt, self._options, math.inf), key)

    def run(self, load: ClosedLoop, vocabulary: int, rng: np.random.Generator) -> dict[str, float]:
        """Send a load and wait for its end.

        Raises:
            RuntimeError: A request failed.
        """
        given = {"max_tokens": load.tokens, "ignore_eos": True, **self._sampling}
        self._options = parse_sampling_params(json.dumps(given))
        self._left = iter(rng.integers(0, vocabulary, (load.count, load.prompt)).astype(np.int32))
        self._requests = []
        started = time.perf_counter()
        for _ in range(load.at_once):
            self._next()
        for _ in range(load.count):
            self._over.acquire()
            if self._error:
                raise RuntimeError(self._error.message)
        seconds = time.perf_counter() - started
        each = [(call.times[-1] - call.times[0]) / (len(call.times) - 1) for call in self._requests]
        return {
            "ttft_p50_ms": 1e3 * statistics.median(call.times[0] - call.sent for call in self._requests),
            "tpot_mean_ms": 1e3 * statistics.mean(each),
            "tokens_per_s": sum(len(call.times) for call in self._requests) / seconds,
        }


def measure(
    checkpoint: Path, arm: Arm, loads: tuple[ClosedLoop, ...], vocabulary: int
) -> Iterator[tuple[str, Any]]:
    """Each load's numbers as soon as it ended."""
    cuda = torch.cuda.is_available()
    memory = MemoryBudget(24 * GIB, 40 * GIB, 32) if cuda else MemoryBudget(GIB // 16, GIB // 16, 4)
    worker = build_worker(checkpoint, arm, memory)
    callers = Callers(arm.sampling)
    engine = DecodeEngine(worker, None, frozenset(), 10_000, callers.emit)
    callers.serve(engine)
    try:
        rng = np.random.default_rng(0)
        callers.run(WARM_UP if cuda else loads[0], vocabulary, rng)
        gc.collect()
        gc.freeze()  # as the model does after its start
        for load in loads:
            yield str(load), callers.run(load, vocabulary, rng)
    finally:
        gc.unfreeze()
        engine.close()
        close(worker)


def main() -> int:
    """Measure; writes decode_peer_loads.json after every load."""
    rehearsal = not torch.cuda.is_available()
    parser = arguments(__doc__, "decode_peer_loads-GEOMETRY.json")
    parser.add_argument("--geometry", choices=tuple(LOADS), default="tiny" if rehearsal else "qwen3-0.6b")
    parser.add_argument("--selectors", type=by_comma, default=["auto", "dense"])
    parser.add_argument("--sample", type=json.loads, default={}, help="sampling parameters, JSON")
    parser.add_argument("--loads", type=by_comma, help="which of the loads, counted from 0")
    options = parser.parse_args()
    loads = LOADS[options.geometry]
    if options.loads:
        loads = tuple(loads[int(index)] for index in options.loads)
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "sampling": options.sample,
        "loads": [asdict(load) for load in loads],
        "arms": {},
    }
    vocabulary = GEOMETRIES[options.geometry]["vocab_size"]
    path = options.out / f"decode_peer_loads-{options.geometry}{'-sampled' if options.sample else ''}.json"
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(
            options.geometry, Path(directory), CONTEXTS[options.geometry]
        )
        for selector in options.selectors:
            sizes = {"sparse_top_k": 64, "device_buffer_size": 128} if rehearsal else {}
            arm = Arm(selector, {"selector": selector} | sizes, sampling=options.sample)
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
            if not rehearsal:
                torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
