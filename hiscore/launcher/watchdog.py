"""Watches a running server, and starts it anew when a model has died or no longer answers.

Models keep nothing between calls but caches, so the whole server is started anew: the simplest way back to a state
that is known. Who waits for an answer gets an error at once: the old server's connections break when it is killed.
"""

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from hiscore.launcher.canary import Canaries, probes
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.restarts import RestartPolicy
from hiscore.launcher.server import Server

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2


class Watchdog:
    """Watches a server that has been started; `idle` is called several times a second and may raise to end it.

    It must run in the thread that started the server: the kernel stops a server when its starter's thread ends.
    """

    def __init__(self, server: Server, idle: Callable[[], None]) -> None:
        self._server, self._idle = server, idle
        settings = server.settings
        self._policy = RestartPolicy(settings.max_restarts, settings.restart_window_s)
        self.restarts = 0
        self._canaries = self._start_canaries()
        self._busy_with = ""
        self._seen = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the watch goes on, or is busy with a restart or a stop."""
        return bool(self._busy_with) or time.monotonic() - self._seen < 60 * POLL_SECONDS

    @property
    def unready(self) -> str:
        """Why calls should go elsewhere for now; empty if they need not."""
        if self._busy_with:
            return self._busy_with
        doubtful = self._canaries.doubtful if self._canaries else []
        return f"no answer from {', '.join(doubtful)}" if doubtful else ""

    def watch(self) -> NoReturn:
        """Watch until `idle` raises.

        Raises:
            LaunchError: the server has failed and is not to be restarted, or too often.
        """
        try:
            while True:
                self._seen = time.monotonic()
                if fault := self._fault():
                    self._recover(fault)
                self._idle()
                time.sleep(POLL_SECONDS)
        finally:
            self._busy_with = "the server is stopping"
            self._stop_canaries()

    def _fault(self) -> str:
        if self._server.exit_code is not None:
            return f"tritonserver stopped by itself with exit code {self._server.exit_code}"
        if self._server.lost_model:
            return "the process of a model died; its last words are above"
        if self._canaries and self._canaries.silent:
            return f"no answer from {', '.join(self._canaries.silent)}"
        return ""

    def _recover(self, fault: str) -> None:
        began = time.monotonic()
        self._busy_with = "the server is being restarted"
        self._stop_canaries()
        self._server.kill()
        settings = self._server.settings
        while True:
            if settings.watchdog == "exit":
                raise LaunchError(fault)
            pause = self._policy.next_pause(time.monotonic())
            if pause is None:
                raise LaunchError(
                    f"{fault}. Given up after {settings.max_restarts} restarts in "
                    f"{settings.restart_window_s} seconds (MAX_RESTARTS, RESTART_WINDOW_S)"
                )
            log.error("%s: restart %d in %g s", fault, self.restarts + 1, pause)
            self._pause(pause)
            self.restarts += 1
            try:
                self._server.restart()
                break
            except LaunchError as error:
                fault = str(error)
        self._canaries = self._start_canaries()
        self._busy_with = ""
        log.warning("ready again, %.1f s after the fault was seen", time.monotonic() - began)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._idle()
            time.sleep(min(left, POLL_SECONDS))

    def _start_canaries(self) -> Canaries | None:
        server, settings = self._server, self._server.settings
        if not settings.canary_seconds:
            return None
        return Canaries(
            server.http_address,
            server.metrics_address,
            probes(server.models, server.checkpoint),
            settings.canary_seconds,
            settings.canary_timeout_s,
            settings.canary_misses,
        )

    def _stop_canaries(self) -> None:
        if self._canaries:
            self._canaries.close()
        self._canaries = None
