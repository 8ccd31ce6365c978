"""Logs requests that were rejected or have failed: one line each, with its id, and nothing that a caller sent.

An INVALID_ARG message alone quotes what was sent, a label for example: such an error is logged by the check that
raised it.
"""

import logging
import threading
import time
from collections.abc import Callable

from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)

# Rate-limited, so that rejected requests cannot fill the disk.
LINES_PER_SECOND = 100
MAX_ID_LENGTH = 128


class ErrorLog:
    """A rate-limited log; each line says how many were dropped before it. Thread-safe.

    Args:
        limit: Lines per second.
        clock: In seconds.
    """

    def __init__(self, limit: int = LINES_PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._second = self._written = self._dropped = 0
        self._lock = threading.Lock()

    def write(self, request_id: str, error: RequestError) -> None:
        """Log that a request was answered with an error."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= self._limit:
                self._dropped += 1
                return
            self._written += 1
            dropped, self._dropped = self._dropped, 0
        fields: dict[str, object] = {
            "request_id": request_id[:MAX_ID_LENGTH],
            "reason": error.code.value,
            "detail": detail(error),
        }
        if dropped:
            fields["left_out"] = dropped
        level = logging.ERROR if error.code is Code.INTERNAL else logging.INFO
        event = "a call failed" if error.code is Code.INTERNAL else "a call was refused"
        log.log(level, event, extra={"fields": fields})


def detail(error: RequestError) -> str:
    """The message if it quotes nothing of the request, otherwise `module.function:line` of the failed check."""
    if error.code is not Code.INVALID_ARG:
        return error.message
    trace, check = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        check = f"{trace.tb_frame.f_globals.get('__name__')}.{code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return check
