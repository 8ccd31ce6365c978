"""Logs and counts requests that were rejected or have failed: one line each, and nothing that a caller sent.

An INVALID_ARG message alone quotes what was sent, a label for example: such an error is logged by the check that
raised it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)

# Rate-limited, so that rejected requests cannot fill the disk.
LINES_PER_SECOND = 100
MAX_ID_LENGTH = 128
# What Triton's Python backend says when /dev/shm is full.
NO_SHARED_MEMORY = "shared memory pool"


class ErrorLog:
    """A rate-limited log of `limit` lines per second; each says how many were dropped before it. Thread-safe.

    `counts` holds every error by its code, `no_shared_memory` the answers for which /dev/shm had no room.
    """

    def __init__(self, limit: int = LINES_PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._second = self._written = self._dropped = 0
        self._lock = threading.Lock()
        self.counts: Counter[Code] = Counter()
        self.no_shared_memory = 0

    def write(self, request_id: str, error: RequestError) -> None:
        with self._lock:
            self.counts[error.code] += 1
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

    def unsent(self, error: Exception) -> None:
        if NO_SHARED_MEMORY in str(error):
            with self._lock:
                self.no_shared_memory += 1
            log.critical("an answer does not fit into /dev/shm: make it larger (docker run --shm-size=2g)")


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
