"""Deadlines, and when to try again."""

import logging
import math
import random
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from tritonclient.utils import InferenceServerException

from hiscore_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServerUnreachable,
    from_grpc,
    status_of,
)
from hiscore_client.steps import Ask, Pause, Steps

log = logging.getLogger(__name__)

# Seconds within which a server that is there says that it is alive.
LIVENESS_TIMEOUT = 2.0


class Deadline:
    """The moment by which a call must be done, from a timeout in seconds (None: never)."""

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise InvalidRequest(f"'timeout' must be finite and greater than 0 seconds, not {timeout}")
        self.timeout = timeout
        self._clock = clock
        self._end = math.inf if timeout is None else clock() + timeout

    def remaining(self) -> float:
        """Seconds left; infinite without a deadline, zero or less once it has passed."""
        return self._end - self._clock()

    def later(self, seconds: float) -> "Deadline":
        """The same timeout, with some more seconds to hear of its end."""
        other = copy(self)
        other._end += seconds
        return other


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try a call that found the server unavailable, with exponentially growing pauses between.

    attempts: tries in all, 1 for no retry; the other two are seconds.
    """

    attempts: int = 5
    first_pause: float = 0.2
    longest_pause: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause < 0 or self.longest_pause < 0:
            raise ValueError(f"attempts must be at least 1 and pauses at least 0: {self}")

    def pause(self, failures: int, jitter: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many failures: between half and all of the bound, so clients spread out."""
        # A float holds no more than 2.0**1023; long before that the bound no longer grows.
        bound = min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 64))
        return bound * (0.5 + 0.5 * jitter())


def attempts(
    ask: Callable[[float], Ask],
    deadline: Deadline,
    policy: RetryPolicy,
    url: str,
    request_id: str,
    jitter: Callable[[], float] = random.random,
) -> Steps[Any]:
    """Ask until there is an answer, trying again only what was UNAVAILABLE; scoring twice changes nothing.

    ask: makes the step from the seconds left. If the next try would begin after the deadline, the last failure is
    raised at once.
    """
    failures = 0
    while True:
        remaining = deadline.remaining()
        if remaining <= 0:
            raise DeadlineExceeded(f"the timeout of {deadline.timeout} s has passed")
        try:
            return (yield ask(remaining))
        except InferenceServerException as error:
            failure = from_grpc(error)
            if isinstance(failure, DeadlineExceeded) and deadline.timeout is not None:
                failure = DeadlineExceeded(f"the timeout of {deadline.timeout} s has passed")
            retryable = status_of(error) == "UNAVAILABLE" and isinstance(failure, Overloaded)
        if not retryable:
            raise failure from None
        failures += 1
        pause = policy.pause(failures, jitter)
        if failures == policy.attempts or pause >= deadline.remaining():
            if not (yield from _is_live(deadline)):
                raise ServerUnreachable(f"{url} is not reachable: {failure}") from None
            raise failure from None
        log.info("request %s: try %d failed (%s), next in %.2f s", request_id, failures, failure, pause)
        yield Pause(pause)


def _is_live(deadline: Deadline) -> Steps[bool]:
    """Whether anyone answers: gRPC's code for a full server and for no server at all is the same."""
    timeout = min(LIVENESS_TIMEOUT, deadline.remaining())
    if timeout <= 0:
        return True
    try:
        yield Ask("is_server_live", {"client_timeout": timeout})
    except InferenceServerException as error:
        # A server too busy to answer in time is not one that is gone.
        return status_of(error) != "UNAVAILABLE"
    return True
