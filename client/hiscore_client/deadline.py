"""The deadline of a call."""

import math
import time
from collections.abc import Callable
from copy import copy

from hiscore_client.errors import InvalidRequest


class Deadline:
    """The moment by which a call must be done.

    Args:
        timeout: Seconds from now; None: no deadline.

    Raises:
        InvalidRequest: The timeout is not a finite number greater than 0.
    """

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise InvalidRequest(f"'timeout' must be finite and greater than 0 seconds, not {timeout}")
        self.timeout = timeout
        self._clock = clock
        self._end = math.inf if timeout is None else clock() + timeout

    def remaining(self) -> float:
        """Seconds left; infinite without a deadline, zero or less once it has passed."""
        return self._end - self._clock()

    def extended(self, seconds: float) -> "Deadline":
        """A deadline some seconds later that still reports the original timeout."""
        other = copy(self)
        other._end += seconds
        return other
