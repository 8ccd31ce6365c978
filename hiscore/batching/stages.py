"""Requests in two stages: a batcher's answer is made into the job of the next batcher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from hiscore.batching.batched_model import Caller, Job, QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.errors import RequestError, to_request_error
from hiscore.server.load_board import Board


@dataclass
class Staged(Generic[Job]):
    """A request in two stages: `then` makes the next batcher's `job` out of the answer to `first`.

    An error of `then` is the request's answer.
    """

    first: Any
    then: Callable[[Any], Job]
    job: Job | None = None


@dataclass(frozen=True)
class _SubmitNext(Generic[Job]):
    """The caller in the first batcher's eyes: submits the job to the next one."""

    reply_to: Caller
    then: Callable[[Any], Job]
    batcher: Batcher[Job]
    deadline: float

    def send(self, answer: Any) -> None:
        if isinstance(answer, RequestError):
            self.reply_to.send(answer)
            return
        try:
            job = self.then(answer)
        except Exception as error:
            self.reply_to.send(to_request_error(error))
        else:
            self.batcher.submit([QueuedRequest(job, self.reply_to, self.deadline)])

    def is_cancelled(self) -> bool:
        return self.reply_to.is_cancelled()


class TwoStages(Generic[Job]):
    """Two batchers in a row; a job that is not `Staged` goes to the second at once."""

    def __init__(self, first: Batcher[Any], last: Batcher[Job]) -> None:
        self._first, self._last = first, last

    @property
    def board(self) -> Board:
        return self._last.board

    def run_alone(self, job: Job | Staged[Job]) -> Any | None:
        """Run a job on the calling thread as far as batchers are idle, or raise the `RequestError` of `then`."""
        if isinstance(job, Staged):
            answer = self._first.run_alone(job.first)
            if answer is None or isinstance(answer, RequestError):
                return answer
            job.job = made = job.then(answer)
            return self._last.run_alone(made)
        return self._last.run_alone(job)

    def submit(self, requests: Sequence[QueuedRequest[Any]]) -> None:
        first: list[QueuedRequest[Any]] = []
        last: list[QueuedRequest[Job]] = []
        for request in requests:
            job, reply_to, deadline = request.job, request.reply_to, request.deadline
            if not isinstance(job, Staged):
                last.append(request)
            elif job.job is not None:
                last.append(QueuedRequest(job.job, reply_to, deadline))
            else:
                then = _SubmitNext(reply_to, job.then, self._last, deadline)
                first.append(QueuedRequest(job.first, then, deadline))
        if first:
            self._first.submit(first)
        self._last.submit(last)
