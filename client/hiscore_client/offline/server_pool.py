"""Several servers used as one: calls rotate over them, and wait while none can take them."""

import itertools
import math
import threading
import time
from collections.abc import Callable

from hiscore_client.client import ScoreClient
from hiscore_client.errors import Cancelled, HiscoreError, Overloaded, ServerFault, ServerUnreachable
from hiscore_client.offline.job import RunOptions, Task
from hiscore_client.records import ScoreRecord
from hiscore_client.results import ScoreResult
from hiscore_client.retry import RetryPolicy

# Not the fault of the row: it is retried, and if that does not help, the job ends and can be resumed.
TRANSIENT = (Overloaded, ServerUnreachable)
# A dying server answers with a fault, and so does a server for a row that it cannot score. The pauses of this many
# tries add up to more than the 5 seconds in which a dead server is noticed; what still fails then is the row.
FAULT_TRIES = 8
BACKOFF = RetryPolicy(first_pause=0.2, longest_pause=30.0)


class ServerPool:
    """Scores each record with the next server in turn; threads may share it.

    Args:
        options: The servers and how to call them.
        first: Index of the server to begin with, so that workers do not all begin with the same one.
    """

    def __init__(
        self, task: Task, options: RunOptions, first: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task, self._options, self._clock = task, options, clock
        # Retries are counted here, over all servers. The chunks of a large call are sent one after the other, so
        # that it counts as one call in flight.
        self._clients = [
            ScoreClient(url, retry=RetryPolicy(attempts=1), max_in_flight=1) for url in options.urls
        ]
        self._turns = itertools.count(first)
        self._closed = threading.Event()

    def score(self, record: ScoreRecord) -> ScoreResult:
        """Score one record, retrying on all servers.

        Raises:
            Overloaded, ServerUnreachable: No server could take it for as long as `server_timeout`.
            InvalidRequest, DeadlineExceeded, ServerFault, Cancelled: It cannot be scored.
        """
        task = self._task
        give_up_at = math.inf
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
                    adapter=task.adapter,
                    log_scores=task.log_scores,
                    normalize=task.normalize,
                    timeout=self._options.timeout,
                )
            except TRANSIENT as error:
                failure: HiscoreError = error
            except (ServerFault, Cancelled) as error:
                failure = error
                faults += 1
            give_up_at = min(give_up_at, self._clock() + self._options.server_timeout)
            # The next server may be free, so pause only after all of them have been tried.
            rounds, rest = divmod(tries, len(self._clients))
            pause = 0.0 if rest else BACKOFF.pause(rounds)
            gives_up = faults == FAULT_TRIES * len(self._clients) or self._clock() + pause > give_up_at
            if gives_up or self._closed.wait(pause):
                raise failure
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close all clients; calls in progress end."""
        self._closed.set()
        for client in self._clients:
            client.close()

    def __enter__(self) -> "ServerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
