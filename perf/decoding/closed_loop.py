"""Callers of a decode engine in this process, each of which sends its next prompt when its last one ended."""

import json
import math
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.requests.sampling_params import parse_sampling_params
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.errors import RequestError


@dataclass(frozen=True)
class ClosedLoop:
    """`count` requests, `at_once` of them in flight."""

    count: int
    at_once: int
    prompt: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.prompt} in, {self.tokens} out, {self.at_once} at once"


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
