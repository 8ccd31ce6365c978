"""A constant load on `decode` from a separate process, to run during another load."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from hiscore_client import ScoreClient

STARTED_S = 60.0


@dataclass(frozen=True)
class ConstantLoad:
    """Requests at once; whenever one has generated its tokens, another begins with a new prompt."""

    count: int
    prompt: int
    tokens: int
    vocabulary: int


@dataclass(frozen=True)
class Flow:
    """Tokens that requests got between two times; gaps are milliseconds between responses of one request."""

    tokens_per_s: float
    gap_p50: float
    gap_p99: float
    gap_worst: float
    errors: list[str]


@dataclass
class _Seen:
    """Responses that one thread received: when (`time.perf_counter`), tokens, whether they continue a request."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    continues: list[bool] = field(default_factory=list)
    error: str = ""


def _request_in_turn(url: str, load: ConstantLoad, seed: int, seen: _Seen, stop: threading.Event) -> None:
    rng = np.random.default_rng(seed)
    try:
        with ScoreClient(url) as client:
            while not stop.is_set():
                prompt = rng.integers(0, load.vocabulary, load.prompt).tolist()
                first = True
                for chunk in client.generate(prompt, max_tokens=load.tokens, ignore_eos=True):
                    seen.times.append(time.perf_counter())
                    seen.tokens.append(len(chunk.token_ids))
                    seen.continues.append(not first)
                    first = False
                    if stop.is_set():
                        break
    except Exception as error:  # raised where the load was started
        seen.error = f"{type(error).__name__}: {error}"[:200]


def _serve(pipe: Connection, url: str, load: ConstantLoad) -> None:
    stop = threading.Event()
    seen = [_Seen() for _ in range(load.count)]
    threads = [
        threading.Thread(target=_request_in_turn, args=(url, load, seed, of, stop))
        for seed, of in enumerate(seen)
    ]
    for thread in threads:
        thread.start()
    until = time.perf_counter() + STARTED_S
    while time.perf_counter() < until and not all(of.error or len(of.times) > 1 for of in seen):
        time.sleep(0.01)
    pipe.send(None)
    pipe.recv()
    stop.set()
    for thread in threads:
        thread.join()
    pipe.send(seen)


class Running:
    """Requests that have all started; `flow` is set once they have ended."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.flow: Flow | None = None


@contextmanager
def running(url: str, load: ConstantLoad) -> Iterator[Running]:
    """Keep requests running inside the context.

    Raises:
        RuntimeError: A request failed.
    """
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, url, load), daemon=True)
    process.start()
    here.recv()
    requests_running = Running()
    try:
        yield requests_running
    finally:
        end = time.perf_counter()
        here.send(None)
        seen = here.recv()
        process.join()
    requests_running.flow = flow_of(seen, requests_running.begin, end)
    if requests_running.flow.errors:
        raise RuntimeError(f"a stream failed: {requests_running.flow.errors[0]}")


def flow_of(seen: list[_Seen], begin: float, end: float) -> Flow:
    """Sum up what came between two times; perf_counter is the same clock in all processes of a machine.

    Raises:
        RuntimeError: No request received two responses in that time.
    """
    gaps, tokens = [], 0
    for of in seen:
        for at in range(len(of.times)):
            if begin <= of.times[at] <= end:
                tokens += of.tokens[at]
                if of.continues[at] and of.times[at - 1] >= begin:
                    gaps.append(1e3 * (of.times[at] - of.times[at - 1]))
    errors = sorted({of.error for of in seen if of.error})
    if not gaps:
        raise RuntimeError(f"no stream went on: {errors or 'no error'}")
    p50, p99 = np.quantile(gaps, (0.5, 0.99))
    return Flow(tokens / (end - begin), float(p50), float(p99), max(gaps), errors)
