"""Watch a running server, and restart it when a model dies or stops answering.

Models keep nothing between calls but caches, so the whole server is restarted: the simplest way back to a known
state. Clients that wait for an answer get an error at once, since killing the server breaks their connections.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.server import Server

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
# A watchdog that has not checked the server for this long counts as dead.
MAX_SECONDS_BETWEEN_CHECKS = 12.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Long enough for a cause that comes back to use up MAX_RESTARTS, pauses and loading included.
RESTART_WINDOW_S = 600


class RestartPolicy:
    """A rule for restarts: pauses that double, and at most `max_restarts` in any window.

    After a whole window without a restart, pauses begin with the shortest again.
    """

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts, self._window_s = max_restarts, window_s
        self._recent: deque[float] = deque()

    def next_pause(self, now: float) -> float | None:
        """Seconds to wait before the next restart, which counts from `now` on; None: give up."""
        while self._recent and self._recent[0] <= now - self._window_s:
            self._recent.popleft()
        if len(self._recent) >= self._max_restarts:
            return None
        self._recent.append(now)
        return float(min(FIRST_PAUSE_S * 2 ** (len(self._recent) - 1), LONGEST_PAUSE_S))


class Watchdog:
    """Watches a server in the thread that started it, since the kernel ends the server with that thread.

    `idle` is called several times a second; it ends the watch by raising.
    """

    def __init__(self, server: Server, idle: Callable[[], None], clock: Any = time) -> None:
        self._server, self._idle, self._clock = server, idle, clock
        settings = server.settings
        self._policy = RestartPolicy(settings.max_restarts, RESTART_WINDOW_S)
        self.restarts = 0
        self._canaries = server.start_canaries()
        self._busy_with = ""
        self._last_check = clock.monotonic()

    @property
    def alive(self) -> bool:
        """True while it watches, or is busy with a restart or a stop."""
        since: float = self._clock.monotonic() - self._last_check
        return bool(self._busy_with) or since < MAX_SECONDS_BETWEEN_CHECKS

    @property
    def unready(self) -> str:
        """The reason why calls should go elsewhere for now; empty if they need not."""
        if self._busy_with:
            return self._busy_with
        doubtful = self._canaries.doubtful if self._canaries else []
        return f"no answer from {', '.join(doubtful)}" if doubtful else ""

    def watch(self) -> NoReturn:
        """Watch until `idle` raises.

        Raises:
            LaunchError: The server has failed and must not be restarted, or has failed too often.
        """
        try:
            while True:
                self._last_check = self._clock.monotonic()
                if fault := self._fault():
                    self._recover(fault)
                self._idle()
                self._clock.sleep(POLL_SECONDS)
        finally:
            self._busy_with = "the server is stopping"
            self._stop_canaries()

    def _fault(self) -> str:
        if fault := self._server.fault():
            return fault
        if self._canaries and self._canaries.silent:
            return f"no answer from {', '.join(self._canaries.silent)}"
        return ""

    def _recover(self, fault: str) -> None:
        began = self._clock.monotonic()
        self._busy_with = "the server is being restarted"
        self._stop_canaries()
        self._server.kill()
        most = self._server.settings.max_restarts
        while True:
            pause = self._policy.next_pause(self._clock.monotonic())
            if pause is None:
                given_up = f". Given up after {most} restarts in {RESTART_WINDOW_S} seconds (MAX_RESTARTS)"
                raise LaunchError(f"{fault}{given_up if most else ''}")
            log.error("%s: restart %d in %g s", fault, self.restarts + 1, pause)
            self._pause(pause)
            self.restarts += 1
            try:
                self._server.restart()
                break
            except LaunchError as error:
                fault = str(error)
        self._canaries = self._server.start_canaries()
        # Or a restart that took long would look as if the watch had ended.
        self._last_check = self._clock.monotonic()
        self._busy_with = ""
        log.warning("ready again %.1f s after the fault was seen", self._clock.monotonic() - began)

    def _pause(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            self._idle()
            self._clock.sleep(min(left, POLL_SECONDS))

    def _stop_canaries(self) -> None:
        if self._canaries:
            self._canaries.close()
        self._canaries = None
