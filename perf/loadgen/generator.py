"""The load generator: a separate process that sends serialised calls over one gRPC connection.

Open loop: arrival times are drawn before the window starts and latencies count from the intended send time, so
neither a late generator nor a slow server can hide waiting. Closed loop: a fixed number of calls in flight.
"""

import gc
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import grpc
import numpy as np

from hiscore.arrays import Float32
from perf.loadgen.scorer_calls import read_answer

METHOD = "/inference.GRPCInferenceService/ModelInfer"
DEADLINE_SECONDS = 30.0


@dataclass
class Sample:
    """One call of a window: which message, when (seconds from the start of the window), and its answer."""

    message: int
    intended: float
    sent: float = math.nan
    done: float = math.nan
    answer: bytes = b""
    error: str = ""
    scores: Float32 | None = None
    """float32 [items, labels], parsed from the answer after the window."""
    cached: int = 0


class _Sender:
    """Sends calls; lives in the generator's process."""

    def __init__(self, url: str, messages: Sequence[bytes]) -> None:
        self._channel = grpc.insecure_channel(url, options=[("grpc.max_receive_message_length", -1)])
        # Without serialisers: bytes in, bytes out.
        self._infer = self._channel.unary_unary(METHOD)
        self._messages = messages
        self._order = itertools.cycle(range(len(messages)))
        # A garbage collection within a window would show as latency.
        gc.collect()
        gc.freeze()
        gc.disable()

    def open_loop(self, arrivals: Sequence[float]) -> list[Sample]:
        """Send at these times (seconds from the start), answered or not; return when all are answered."""
        samples = [Sample(next(self._order), arrival) for arrival in arrivals]
        futures = []
        start = time.perf_counter() + 0.05
        for sample in samples:
            # A busy wait would be more punctual but starve the thread that receives.
            time.sleep(max(0.0, start + sample.intended - time.perf_counter()))
            sample.sent = time.perf_counter() - start
            future = self._infer.future(self._messages[sample.message], timeout=DEADLINE_SECONDS)
            future.add_done_callback(lambda _, sample=sample: _stamp(sample, start))
            futures.append(future)
        for sample, future in zip(samples, futures, strict=True):
            _collect(sample, future.result)
        # Results arrive a moment before their callbacks have run.
        while any(math.isnan(sample.done) for sample in samples):
            time.sleep(0.001)
        return samples

    def closed_loop(self, concurrency: int, seconds: float) -> list[Sample]:
        """Keep `concurrency` calls in flight for so many seconds; calls started by then are finished."""
        samples: list[Sample] = []
        start = time.perf_counter()

        def work() -> None:
            while (now := time.perf_counter() - start) < seconds:
                sample = Sample(next(self._order), now, now)
                message = self._messages[sample.message]
                _collect(sample, partial(self._infer, message, timeout=DEADLINE_SECONDS))
                sample.done = time.perf_counter() - start
                samples.append(sample)

        threads = [threading.Thread(target=work) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return samples


def _stamp(sample: Sample, start: float) -> None:
    sample.done = time.perf_counter() - start


def _collect(sample: Sample, answer: Callable[[], bytes]) -> None:
    try:
        sample.answer = answer()
    except grpc.RpcError as error:
        sample.error = f"{error.code().name}: {error.details()}"[:200]


_sender: _Sender


def _begin(url: str, messages: Sequence[bytes]) -> None:
    global _sender
    _sender = _Sender(url, messages)


def _open_loop(arrivals: Sequence[float]) -> list[Sample]:
    return _read(_sender.open_loop(arrivals))


def _closed_loop(concurrency: int, seconds: float) -> list[Sample]:
    return _read(_sender.closed_loop(concurrency, seconds))


def _read(samples: list[Sample]) -> list[Sample]:
    for sample in samples:
        if not sample.error:
            sample.scores, sample.cached = read_answer(sample.answer)
        sample.answer = b""
    return samples


class Generator:
    """The generator's process. Messages are sent in turn, continuing from window to window."""

    def __init__(self, url: str, messages: Sequence[bytes]) -> None:
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(url, messages))

    def __enter__(self) -> "Generator":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def open_loop(self, arrivals: Sequence[float]) -> list[Sample]:
        """Send at these times, in seconds from the start of the window."""
        return self._pool.submit(_open_loop, arrivals).result()

    def closed_loop(self, concurrency: int, seconds: float) -> list[Sample]:
        """Keep `concurrency` calls in flight for so many seconds."""
        return self._pool.submit(_closed_loop, concurrency, seconds).result()


def poisson(rng: np.random.Generator, rate: float, seconds: float) -> list[float]:
    """Arrival times, in seconds, of a Poisson process with `rate` arrivals a second."""
    gaps = rng.exponential(1 / rate, math.ceil(rate * seconds * 1.5) + 50)
    times = np.cumsum(gaps)
    arrivals: list[float] = times[times < seconds].tolist()
    return arrivals
