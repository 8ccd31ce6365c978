"""Several servers as one: calls go round, and wait for as long as none can take them."""

import itertools
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

from hiscore_client.cli.records import Record
from hiscore_client.client import ScoreClient
from hiscore_client.errors import Cancelled, HiscoreError, Overloaded, ServerFault, ServerUnreachable
from hiscore_client.offline.job import Effort, Task
from hiscore_client.results import ScoreResult
from hiscore_client.retry import RetryPolicy

# Says nothing of the row: it is tried again, and if that does not help the job ends and can be resumed.
NOT_NOW = (Overloaded, ServerUnreachable)
# A server that dies answers like this, and so does a row that no server can do. The pauses between so many tries
# sum up to more than the 5 seconds in which a server notices that it is dead: what still fails then is the row.
FAULT_TRIES = 8
PAUSES = RetryPolicy(first_pause=0.2, longest_pause=30.0)


class Servers:
    """``score`` by whichever server is next; threads may share it.

    first: where in the list of servers to begin, so that workers do not all begin with the same one.
    """

    def __init__(
        self, task: Task, effort: Effort, first: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task, self._effort, self._clock = task, effort, clock
        # Tries are counted here, over all servers; and a large call must not be more than one call in flight.
        self._clients = [
            ScoreClient(url, retry=RetryPolicy(attempts=1), max_in_flight=1) for url in effort.urls
        ]
        self._turns = itertools.count(first)
        self._closed = threading.Event()

    def score(self, record: Record) -> ScoreResult:
        """The row's result.

        Raises:
            Overloaded, ServerUnreachable: for longer than the patience; any other server would say the same.
            InvalidRequest, DeadlineExceeded, ServerFault, Cancelled: this row cannot be scored.
        """
        task = self._task
        impatient = math.inf
        faults = 0
        for tries in itertools.count(1):
            client = self._clients[next(self._turns) % len(self._clients)]
            try:
                return client.score(
                    record.query,
                    record.items,
                    labels=list(task.labels) or None,
                    label_token_ids=list(task.label_token_ids) or None,
                    apply_softmax=task.apply_softmax,
                    temperature=task.temperature,
                    item_first=task.item_first,
                    timeout=self._effort.timeout,
                )
            except NOT_NOW as error:
                failure: HiscoreError = error
            except (ServerFault, Cancelled) as error:
                failure = error
                faults += 1
            impatient = min(impatient, self._clock() + self._effort.patience)
            # Another server may be free at once; after a round of all of them it is time to wait.
            rounds, rest = divmod(tries, len(self._clients))
            pause = 0.0 if rest else PAUSES.pause(rounds)
            gives_up = faults == FAULT_TRIES * len(self._clients) or self._clock() + pause > impatient
            if gives_up or self._closed.wait(pause):
                raise failure
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Calls under way end."""
        self._closed.set()
        for client in self._clients:
            client.close()

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
