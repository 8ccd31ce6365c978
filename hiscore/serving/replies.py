"""Answers requests, once each, with what was computed of their parts."""

import threading
import time
from typing import Any, Generic

from hiscore.errors import RequestError, to_request_error
from hiscore.serving.batched_model import BatchedModel, Job
from hiscore.serving.queued_request import QueuedRequest
from hiscore.serving.totals import Totals
from hiscore.serving.waiting import WaitingRequests


class Replies(Generic[Job]):
    """For a batcher, whose lock `changed` guards what waits."""

    def __init__(
        self,
        model: BatchedModel[Job],
        waiting: WaitingRequests[Job],
        totals: Totals,
        changed: threading.Condition,
    ) -> None:
        self._model, self._waiting, self._totals, self._changed = model, waiting, totals, changed

    def add_part(self, request: QueuedRequest[Job], answer: Any) -> None:
        """Keep the answer of a request's next part; its last part or its first error answers the request.

        What then still comes of it is dropped.
        """
        with self._changed:
            if request.answered:
                return
            request.answers.append(answer)
            is_last = request.done is None and len(request.answers) == request.launched
        if isinstance(answer, RequestError) or (request.launched == 1 and is_last):
            self.send(request, answer)
        elif is_last:
            self.send(request, self._join(request))

    def send(self, request: QueuedRequest[Job], answer: Any) -> None:
        """Answer a request, once."""
        with self._changed:
            if request.answered:
                return
            request.answered = True
            self._waiting.answered(request)
            if not isinstance(answer, RequestError):
                self._totals.call.observe(time.monotonic() - request.since)
        request.reply_to.send(answer)

    def _join(self, request: QueuedRequest[Job]) -> Any:
        """The answer of a request of several parts; an error if they cannot be joined."""
        try:
            return self._model.join(request.job, request.answers)
        except Exception as error:
            return to_request_error(error)
