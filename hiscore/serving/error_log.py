"""The log of calls that were refused or have failed: a line for each, with its id, and nothing that a caller sent.

INVALID_ARG alone quotes what was sent, a label say: of such an error the log names the check that raised it.
"""

import logging
import threading
import time
from collections.abc import Callable

from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)

# Anybody who may call can be refused as often as he likes: he must not fill a disk with it.
MOST_A_SECOND = 100
LONGEST_ID = 128


class RefusalLog:
    """Writes at most `most` lines a second, and with the next one how many were left out. Thread-safe."""

    def __init__(self, most: int = MOST_A_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._second = self._written = self._left_out = 0
        self._lock = threading.Lock()

    def write(self, request_id: str, error: RequestError) -> None:
        """Log that a call was answered by an error."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= self._most:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        fields: dict[str, object] = {
            "request_id": request_id[:LONGEST_ID],
            "reason": error.code.value,
            "detail": detail(error),
        }
        if left_out:
            fields["left_out"] = left_out
        level = logging.ERROR if error.code is Code.INTERNAL else logging.INFO
        said = "a call failed" if error.code is Code.INTERNAL else "a call was refused"
        log.log(level, said, extra={"fields": fields})


def detail(error: RequestError) -> str:
    """The message if it is all ours, else ``module.function:line`` of the check that failed."""
    if error.code is not Code.INVALID_ARG:
        return error.message
    trace, found = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        found = f"{trace.tb_frame.f_globals.get('__name__')}.{code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
