"""A decode engine in this process, and a load on it: what its streams' tokens took."""

import json
import math
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.kv_cache.sizing import MemoryBudget
from hiscore.decoding.sampling_params import parse_sampling_params
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.decoding.worker import build
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.errors import RequestError
from hiscore.settings import CacheSettings
from perf.models import random_checkpoint

PLENTY = 2**60


@dataclass(frozen=True)
class Load:
    """Streams sent at once, each with a prompt of so many random tokens and so many to generate."""

    streams: int
    prompt: int
    tokens: int

    @property
    def context(self) -> int:
        """Tokens of the longest stream, in whole pages."""
        return -(-(self.prompt + self.tokens) // 32) * 32


@dataclass(frozen=True)
class Arm:
    """What is compared: settings of the cache, and work that is left out.

    left_out: `backup` (no copies to the host) or `swap-in` (no copies back). Such an arm's tokens mean nothing;
    its time is a floor.
    """

    name: str
    settings: Mapping[str, Any]
    left_out: str = ""


@dataclass(frozen=True)
class Run:
    """What one load took. Times between tokens are taken while all streams run."""

    tpot_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    ttft_ms: float
    seconds: float
    tokens_per_s: float
    """Of the whole load, prefill included."""
    step_ms: float
    """Mean of the steps on the device."""
    decode_tokens_per_s: float
    """Tokens by steps over the steps' time alone."""
    rows_per_step: float
    hit_rate: float
    swap_in_mib: float
    """By step."""
    captured: float
    """The selector's estimate of the share of attention that it captured."""
    preemptions: int


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def dtype() -> torch.dtype:
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


@contextmanager
def shared_weights() -> Iterator[None]:
    """All workers built meanwhile from one checkpoint (or its like) share the weights, drawn in memory."""
    with ExitStack() as stack:
        stack.enter_context(random_checkpoint.in_memory(device().type))
        for name in ("Decoder", "DsaDecoder"):
            stack.enter_context(mock.patch.object(build, name, cache(getattr(build, name))))
        yield


def build_worker(checkpoint: Path, arm: Arm, memory: MemoryBudget) -> CacheWorker:
    """A worker without what the arm leaves out."""
    with ExitStack() as stack:
        if arm.left_out == "swap-in":
            if device().type != "cuda":
                raise Unavailable("a swap-in can be left out on a CUDA device only")
            from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps

            # While the graphs are captured.
            stack.enter_context(mock.patch.object(TritonCacheOps, "_swap_in", _nothing))
        worker = build.build_worker(
            checkpoint,
            CacheSettings(**arm.settings),
            memory,
            device(),
            dtype(),
            build.CHUNK[device().type],
        )
    if arm.left_out == "backup":
        setattr(worker._steps, "offload_step", _nothing)  # noqa: B010
    return worker


def close(worker: CacheWorker) -> None:
    """Give its pinned memory back, when nothing on the device reads or writes it any more."""
    if device().type == "cuda":
        torch.cuda.synchronize()
    worker._cache.close()


def _nothing(*_: Any) -> None:
    """In place of a copy."""


class Unavailable(Exception):
    """This machine cannot measure an arm; the message says why."""


@dataclass
class _Arrivals:
    times: dict[int, list[float]] = field(default_factory=dict)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    errors: list[str] = field(default_factory=list)

    def emit(self, key: int, output: Output | RequestError) -> None:
        if isinstance(output, RequestError):
            self.errors.append(output.message)
        else:
            self.times.setdefault(key, []).extend([time.perf_counter()] * len(output.token_ids))
        if isinstance(output, RequestError) or output.finish_reason:
            self.ended.release()


class Bench:
    """An engine for one arm. memory: by default there is room for all streams of the load."""

    def __init__(self, checkpoint: Path, arm: Arm, load: Load, memory: MemoryBudget | None = None) -> None:
        begun = time.perf_counter()
        memory = memory or MemoryBudget(PLENTY, PLENTY, load.streams)
        self._load, self._arrivals = load, _Arrivals()
        self.worker = build_worker(checkpoint, arm, memory)
        self.load_s = time.perf_counter() - begun
        self.errors: list[Exception] = []
        self._engine = DecodeEngine(
            self.worker, None, frozenset(), 10_000, self._emit, self.errors.append, self.errors.append
        )
        self._vocabulary: int = json.loads((checkpoint / "config.json").read_text())["vocab_size"]

    def _emit(self, key: int, output: Output | RequestError) -> None:
        self._arrivals.emit(key, output)

    @property
    def device_bytes(self) -> dict[str, int]:
        """What the arm holds on the device beside the weights, by tensor."""
        cache, staging = self.worker._cache, self.worker._model.staging
        sizes = cache.shape.bytes(staging.dtype)
        sizes.pop("host_kv")
        return {"staging": staging.numel() * staging.element_size()} | sizes

    def run(self, seed: int = 0, tokens: int | None = None) -> Run:
        """Send the load and wait for its end.

        Raises:
            RuntimeError: a stream failed.
        """
        load, arrivals = self._load, _Arrivals()
        self._arrivals = arrivals
        options = parse_sampling_params(json.dumps({"max_tokens": tokens or load.tokens, "ignore_eos": True}))
        rng = np.random.default_rng(seed)
        prompts = rng.integers(0, self._vocabulary, (load.streams, load.prompt)).astype(np.int32)
        before, begun = self._engine.stats(), time.perf_counter()
        for key, prompt in enumerate(prompts):
            self._engine.submit(DecodeCall(prompt, options, math.inf), key)
        for _ in prompts:
            arrivals.ended.acquire()
        seconds, after = time.perf_counter() - begun, self._engine.stats()
        if arrivals.errors:
            raise RuntimeError(arrivals.errors[0]) from (self.errors[0] if self.errors else None)

        def risen(name: str) -> float:
            return float(getattr(after, name) - getattr(before, name))

        gaps = between(list(arrivals.times.values())) * 1e3
        shape, steps = self.worker._cache.shape, max(risen("steps"), 1)
        unit = shape.kv_parts * shape.page_size * shape.head_dim * dtype().itemsize
        decoded = risen("tokens") - load.streams
        return Run(
            tpot_ms=float(gaps.mean()) if len(gaps) else math.nan,
            itl_p50_ms=float(np.median(gaps)) if len(gaps) else math.nan,
            itl_p99_ms=float(np.quantile(gaps, 0.99)) if len(gaps) else math.nan,
            ttft_ms=1e3 * statistics.median(times[0] - begun for times in arrivals.times.values()),
            seconds=seconds,
            tokens_per_s=risen("tokens") / seconds,
            step_ms=1e3 * risen("step_seconds") / steps,
            decode_tokens_per_s=decoded / max(risen("step_seconds"), 1e-9),
            rows_per_step=decoded / steps,
            hit_rate=risen("hits") / max(risen("hits") + risen("misses"), 1),
            swap_in_mib=risen("misses") * unit / steps / 2**20,
            captured=risen("captured") / max(risen("captured_rows"), 1),
            preemptions=int(risen("preemptions")),
        )

    def close(self) -> None:
        self._engine.close()
        close(self.worker)


def between(times: list[list[float]]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Times between a stream's tokens, for all streams, from when the last has begun until the first has ended."""
    begin, end = max(of[0] for of in times), min(of[-1] for of in times)
    return np.concatenate([np.diff([at for at in of if begin <= at <= end]) for of in times])
