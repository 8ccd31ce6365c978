"""Retries of calls that found the server unavailable."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tritonclient.utils import InferenceServerException

from hiscore_client.deadline import Deadline
from hiscore_client.errors import DeadlineExceeded, Overloaded, ServerUnreachable, from_grpc, status_of
from hiscore_client.sans_io import Operation, Rpc, Sleep

log = logging.getLogger(__name__)

# Seconds within which a running server answers a liveness check.
LIVENESS_TIMEOUT = 2.0


@dataclass(frozen=True)
class RetryPolicy:
    """Retries of a call that found the server unavailable, with exponential backoff and jitter.

    Args:
        attempts: Tries in all; 1 for no retry.
        first_pause: Seconds before the first retry.
        longest_pause: Upper bound of a pause, in seconds.

    Raises:
        ValueError: ``attempts`` below 1 or a negative pause.
    """

    attempts: int = 5
    first_pause: float = 0.2
    longest_pause: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause < 0 or self.longest_pause < 0:
            raise ValueError(f"attempts must be at least 1 and pauses at least 0: {self}")

    def pause(self, failures: int, jitter: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this many failures, between half of the bound and all of it.

        Args:
            failures: At least 1.
            jitter: Gives a number from 0 to 1.
        """
        # A float holds no more than 2.0**1023; the bound stops growing long before.
        bound = min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 64))
        return bound * (0.5 + 0.5 * jitter())


def call_with_retries(
    make_rpc: Callable[[float], Rpc],
    deadline: Deadline,
    policy: RetryPolicy,
    url: str,
    request_id: str,
    jitter: Callable[[], float] = random.random,
) -> Operation[Any]:
    """Call until there is an answer; only UNAVAILABLE is retried. Scoring twice has no side effects.

    Args:
        make_rpc: Makes the call from the seconds left.
        deadline: If the next try would begin after it, the last failure is raised at once.
        jitter: Gives a number from 0 to 1.

    Returns:
        The answer of the first call that succeeds.

    Raises:
        ServerUnreachable: UNAVAILABLE to the end, and the server fails a liveness check.
        Overloaded: UNAVAILABLE to the end, but the server is up.
        HiscoreError: As `from_grpc` maps any other failure.
    """
    failures = 0
    while True:
        remaining = deadline.remaining()
        if remaining <= 0:
            raise DeadlineExceeded(f"the timeout of {deadline.timeout} s has passed")
        try:
            return (yield make_rpc(remaining))
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
            if not (yield from _is_server_live(deadline)):
                raise ServerUnreachable(f"{url} is not reachable: {failure}") from None
            raise failure from None
        log.info("request %s: try %d failed (%s), next in %.2f s", request_id, failures, failure, pause)
        yield Sleep(pause)


def _is_server_live(deadline: Deadline) -> Operation[bool]:
    """Tell a full server from no server at all: gRPC has one code for both."""
    timeout = min(LIVENESS_TIMEOUT, deadline.remaining())
    if timeout <= 0:
        return True
    try:
        yield Rpc("is_server_live", {"client_timeout": timeout})
    except InferenceServerException as error:
        # A server too busy to answer in time is still reachable.
        return status_of(error) != "UNAVAILABLE"
    return True
