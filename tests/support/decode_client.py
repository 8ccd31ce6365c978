"""An engine over a worker, and a client of it."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.engine.stats import EngineStats
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import Detokenizer
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.errors import RequestError
from tests.support.decode_worker import preempt_after
from tests.support.timeouts import TIMEOUT_S


@dataclass(eq=False)
class Outcome:
    """What a call has been sent so far; end: its finish reason or its error."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: str | RequestError | None = None
    usage: tuple[int, int, int] = (0, 0, 0)


class Client:
    """Submits calls to an engine and keeps their outputs; `hook` is called on the engine's thread after each."""

    def __init__(self) -> None:
        self.engine: DecodeEngine
        self.failures: list[Exception] = []
        self.hook: Callable[[Outcome], None] = lambda outcome: None
        self._changed = threading.Condition()

    def submit(
        self, tokens: np.ndarray, max_tokens: int, deadline: float = math.inf, **options: Any
    ) -> Outcome:
        outcome = Outcome()
        options = {"ignore_eos": True, **options}
        call = DecodeCall(tokens, SamplingParams(max_tokens=max_tokens, **options), deadline)
        self.engine.submit(call, outcome)
        return outcome

    def emit(self, outcome: Outcome, output: Output | RequestError) -> None:
        with self._changed:
            assert outcome.end is None, "an answer after the last"
            if isinstance(output, RequestError):
                outcome.end = output
            else:
                outcome.tokens += output.token_ids
                outcome.text += output.text
                outcome.end = output.finish_reason or None
                outcome.usage = output.usage
            self._changed.notify_all()
        self.hook(outcome)

    def wait(self, outcomes: list[Outcome], timeout: float = TIMEOUT_S) -> None:
        with self._changed:
            ended = self._changed.wait_for(lambda: all(each.end is not None for each in outcomes), timeout)
        assert ended, "a sequence does not end"

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats()


def assert_pools_are_free(engine: DecodeEngine) -> None:
    pools, stats = engine._scheduler.blocks, engine.stats()
    every = (pools.seq_indices, pools.host, pools.device, pools.staging, pools.windows.pool, pools.states)
    assert [pool.num_used for pool in every] == [0] * 6
    assert engine._scheduler.idle
    assert (stats.running, stats.waiting, stats.prefilling, stats.preempted) == (0, 0, 0, 0)
    assert (stats.host_rows, stats.device_rows, stats.backup_lag) == (0, 0, 0)


@contextmanager
def serving(
    worker: CacheWorker | ParallelWorker,
    quantum: int = 0,
    eos: frozenset[int] = frozenset(),
    detokenizer: Callable[[bool, list[int]], Detokenizer] | None = None,
) -> Iterator[Client]:
    """An engine over a worker; at its end all memory must be free."""
    client = Client()
    options = {"on_failure": client.failures.append, "preemption_policy": preempt_after(quantum)}
    client.engine = DecodeEngine(worker, detokenizer, eos, 10_000, client.emit, **options)
    try:
        yield client
    finally:
        client.engine.close()
    assert_pools_are_free(client.engine)
    own = worker if isinstance(worker, CacheWorker) else worker._own
    assert (own._schedule.lag() == 0).all()
