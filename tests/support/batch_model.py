"""A model of a batcher, whose batches end when the test says so; it keeps what was launched and each answer."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hiscore.batching.batched_model import QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.errors import RequestError
from tests.support.timeouts import TIMEOUT_S

FOREVER = float("inf")


class BatchModel:
    between = 0

    def __init__(self, async_launch: bool) -> None:
        self.async_launch = async_launch
        self.launched: list[Any] = []
        self.answers: dict[Any, Any] = {}
        self.answered_twice: list[Any] = []
        self.cancelled: set[Any] = set()
        self.counted: list[list[Any]] = []
        self.go = threading.Semaphore(0)
        """One for each batch or slice that may end."""
        self.changed = threading.Condition()

    def note_launch(self, launched: object) -> None:
        with self.changed:
            self.launched.append(launched)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout=TIMEOUT_S)

    def join(self, job: Any, answers: Sequence[object]) -> object:
        return list(answers)

    def wait_for_go(self) -> None:
        assert self.go.acquire(timeout=TIMEOUT_S)

    def answers_of(self, jobs: list[Any]) -> Sequence[object]:
        return [10 * job for job in jobs]

    def submit(self, batcher: Batcher[Any], *jobs: Any, deadline: float = FOREVER) -> list[Any]:
        """Submit jobs together; returns those that are refused, as full or closing."""
        batcher.submit([QueuedRequest(job, Caller(self, job), deadline) for job in jobs])
        return self.refused(*jobs)

    def refused(self, *names: Any) -> list[Any]:
        return [name for name in names if isinstance(self.answers.get(name), RequestError)]


class Caller:
    def __init__(self, model: BatchModel, name: Any) -> None:
        self.model, self.name = model, name

    def send(self, answer: object) -> None:
        with self.model.changed:
            if self.name in self.model.answers:
                self.model.answered_twice.append(self.name)
            self.model.answers[self.name] = answer
            self.model.changed.notify_all()

    def is_cancelled(self) -> bool:
        return self.name in self.model.cancelled


class Batch:
    """A launched batch, whose end `wait` waits for."""

    def __init__(self, model: BatchModel, jobs: list[Any], wait: Callable[[], object] | None = None) -> None:
        self.model, self.jobs, self.wait = model, jobs, wait or model.wait_for_go

    def finish(self) -> Sequence[object]:
        self.wait()
        return self.model.answers_of(self.jobs)

    def count(self) -> None:
        self.model.counted.append(self.jobs)
