"""The HTTP API beside the server: started, watched, restarted by itself, drained first."""

import http.client
import json
import logging
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hiscore.launcher.addresses import in_url, reachable
from hiscore.launcher.api_tls import LinkRefused, link_variables
from hiscore.launcher.child import POLL_SECONDS, Child
from hiscore.launcher.errors import BadSetting, LaunchError
from hiscore.launcher.libraries import LIBRARIES
from hiscore.launcher.ports import check_address, check_free, free_ports
from hiscore.launcher.watchdog import RESTART_WINDOW_S, RestartPolicy
from hiscore.settings import ApiProcessSettings, ServeSettings

log = logging.getLogger(__name__)

START_SECONDS = 60.0
# Seconds between the end of the API's own drain and killing it.
GRACE_SECONDS = 5.0
PREFIX = "HISCORE_"
CHECKED = {"adapters", "api_keys_file", "calibration", "prompt_template", "prompt_labels"}
"""Settings of which only the API's process can tell that they are wrong."""


class Api:
    """``with Api(settings, checkpoint, backend, models) as api``: it answers inside, and is gone afterwards.

    Start it from a thread that lives as long: the kernel stops the API when that thread ends.

    Args:
        backend: ``host:port`` of the models' gRPC.
        log_path: The file of its output; None: this process's standard error.
    """

    def __init__(
        self,
        settings: ServeSettings,
        checkpoint: Path,
        backend: str,
        models: Sequence[str],
        log_path: Path | None = None,
    ) -> None:
        self._settings, self._log_path = settings, log_path
        self._checkpoint, self._backend, self._models = checkpoint, backend, models
        self._policy = RestartPolicy(settings.max_restarts, RESTART_WINDOW_S)
        self._child: Child | None = None
        self._restart_at = 0.0
        self.port = settings.api_port or 1  # until `start` chooses

    def __enter__(self) -> "Api":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``http://host:port``, or with ``https``."""
        address = self._settings.api_address or self._settings.bind_address
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://{in_url(reachable(address))}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the API is not running"
        return self._child.pid

    def start(self) -> None:
        """Start the API and wait until it answers.

        Raises:
            LaunchError: Its port is taken, or it does not start.
        """
        self.port = choose_port(self._settings)
        self._launch()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._child is not None
            if (code := self._child.exit_code()) is not None or time.monotonic() > deadline:
                self.stop()
                self._restart_at = time.monotonic() + (self._next_pause() or RESTART_WINDOW_S)
                reason = "did not answer in time" if code is None else f"stopped with exit code {code}"
                raise LaunchError(f"the HTTP API {reason}; see its log above (API_PORT= starts none)")
            time.sleep(POLL_SECONDS)

    def watch(self) -> None:
        """Restart the API if it has died, after a pause; call this several times a second.

        Beside models of this server's own it never ends the server: when it has died too often, it is tried again
        after `RESTART_WINDOW_S`.

        Raises:
            LaunchError: It is alone, and has died too often or must not be restarted.
        """
        if self._child is not None and (code := self._child.exit_code()) is not None:
            fault = f"the HTTP API stopped by itself with exit code {code}"
            self._child.kill()
            self._child = None
            pause = self._next_pause()
            if pause is None and self._settings.api_backend:
                raise LaunchError(fault)
            pause = pause or RESTART_WINDOW_S
            log.error("%s: restart in %g s", fault, pause)
            self._restart_at = time.monotonic() + pause
        if self._child is None and time.monotonic() >= self._restart_at:
            try:
                self._launch()
            except LaunchError as error:
                if self._settings.api_backend:
                    raise
                log.error("%s: tried again in %g s", error, RESTART_WINDOW_S)

    def _next_pause(self) -> float | None:
        return self._policy.next_pause(time.monotonic())

    def check_settings(self) -> None:
        """Run `check` where a setting may be wrong: it takes some seconds, which other starts need not wait."""
        if self._settings.model_fields_set & CHECKED:
            self.check()

    def check(self) -> None:
        """Make the application in a process that logs what it would refuse, and serves nothing.

        Raises:
            BadSetting: It cannot start with these settings.
        """
        command = [sys.executable, "-m", "hiscore.api", "--check"]
        if subprocess.run(command, env=self._environment(), check=False).returncode:
            raise BadSetting(
                "the HTTP API cannot start with these settings; see above (API_PORT= starts none)"
            )

    def stop(self) -> None:
        """Let the API finish its requests, then end all of its processes."""
        if self._child:
            self._child.stop(self._settings.drain_timeout_s + GRACE_SECONDS)
        self._child = None

    def _launch(self) -> None:
        command = [sys.executable, "-m", "hiscore.api"]
        try:
            self._child = Child(command, self._environment(), self._log_path)
        except (LinkRefused, OSError) as error:  # a certificate that is being replaced, say
            self._restart_at = time.monotonic() + RESTART_WINDOW_S
            raise LaunchError(f"the HTTP API cannot be started: {error}") from None

    def _environment(self) -> dict[str, str]:
        settings = self._settings
        given = {
            **settings.model_dump(mode="json", include=set(ApiProcessSettings.model_fields)),
            "checkpoint": str(self._checkpoint),
            "backend": self._backend,
            "served_models": ",".join(self._models),
            "max_body_bytes": body_bytes(settings),
            "listen_address": settings.api_address or settings.bind_address,
            "listen_port": self.port,
            "listen_tls_cert": settings.tls_cert,
            "listen_tls_key": settings.tls_key,
            "listen_tls_client_ca": settings.tls_client_ca,
        }
        variables = {
            f"{PREFIX}{name.upper()}": str(value) if isinstance(value, str | Path) else json.dumps(value)
            for name, value in given.items()
            if value is not None
        }
        return {**LIBRARIES, **os.environ, **link_variables(settings, os.environ), **variables}

    def _answers(self) -> bool:
        host = self.url.partition("://")[2]
        connection = http.client.HTTPConnection(host, timeout=5)
        if self._settings.tls_cert:
            # Asked is only whether our own process is there.
            connection = http.client.HTTPSConnection(
                host, timeout=5, context=ssl._create_unverified_context()
            )
        try:
            connection.connect()
            if self._settings.tls_client_ca:
                return True  # without a certificate of that CA there is no answer
            connection.request("GET", "/health")
            return connection.getresponse().status in (200, 503)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def body_bytes(settings: ServeSettings) -> int:
    """Bytes of a body that the API reads: four times the text of the largest call, for escapes in JSON."""
    return 4 * settings.max_text_bytes


def choose_port(settings: ServeSettings) -> int:
    """Return API_PORT, or a free one for 0.

    Raises:
        LaunchError: The port is in use, or the address is another machine's.
    """
    port, address = settings.api_port, settings.api_address or settings.bind_address
    assert port is not None, "there is to be no API"
    check_address("API_ADDRESS" if settings.api_address else "BIND_ADDRESS", address)
    check_free("API_PORT", address, port)
    return port or free_ports(address, 1)[0]


def wanted(settings: ServeSettings) -> bool:
    """Tell whether there is to be an API, and check its port (`choose_port`) before anything is started."""
    if settings.api_port is None:
        return False
    try:
        link_variables(settings, os.environ)
    except LinkRefused as error:
        log.warning(
            "the HTTP API is left out: it could not call the models with TLS_CERT %s: %s. Set HISCORE_TLS_CERT "
            "and HISCORE_TLS_KEY to a certificate of TLS_CLIENT_CA, or API_PORT to nothing",
            settings.tls_cert,
            error,
        )
        return False
    choose_port(settings)
    return True
