"""``make serve``: the server in the foreground until a SIGTERM or a SIGINT."""

import logging
import os
import re
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pydantic import ValidationError

from hiscore import checkpoint
from hiscore.checkpoint import BadCheckpoint, CheckpointError
from hiscore.launcher import api
from hiscore.launcher.api import Api
from hiscore.launcher.arguments import check_variables, parse, take_settings
from hiscore.launcher.choice import choose
from hiscore.launcher.early_checks import check_files, check_tls
from hiscore.launcher.errors import BadSetting, LaunchError
from hiscore.launcher.health import HealthServer
from hiscore.launcher.preflight import SharedMemoryWatch
from hiscore.launcher.server import Server
from hiscore.launcher.watchdog import POLL_SECONDS, Watchdog
from hiscore.logs import LogFormat, configure
from hiscore.models.support import servable
from hiscore.settings import ServeSettings
from hiscore.settings.models import complaints

log = logging.getLogger("hiscore.launcher")

TEXT = "%(asctime)s hiscore: %(message)s"
MAKES = ("make", "gmake")


class Stop(BaseException):
    """A signal asks us to stop. Not an `Exception`, so that no handler on the way swallows it."""


def stop(signum: int, frame: FrameType | None) -> None:
    """Signal handler: raise `Stop` once. A second signal must not cut the drain short."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise Stop


class MakeInterrupt:
    """Notices a SIGINT that was sent to `make` alone; never one of other parents or systems.

    On a SIGTERM, make signals its children and waits for them. On a SIGINT it only waits, because a Ctrl-C reaches
    the whole process group anyway; if the SIGINT was sent to make alone, it would wait forever. What a child can
    see is that make restores the signal's default action when it gets one.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._is_make = self._name() in MAKES and self._catches_interrupt()

    def interrupted(self) -> bool:
        """Tell whether make got a SIGINT or is gone."""
        return self._is_make and (os.getppid() != self._parent or not self._catches_interrupt())

    def _name(self) -> str:
        return self._read("comm").strip()

    def _catches_interrupt(self) -> bool:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", self._read("status"), re.MULTILINE)
        return bool(caught and int(caught.group(1), 16) >> (signal.SIGINT - 1) & 1)

    def _read(self, name: str) -> str:
        try:
            return Path(f"/proc/{self._parent}/{name}").read_text()
        except OSError:
            return ""


def stop_with(make: MakeInterrupt) -> None:
    """Stop as if signalled if make got a SIGINT that did not reach us."""
    if make.interrupted():
        stop(signal.SIGINT, None)


def start_health(server: Server, watchdog: Watchdog) -> str:
    """Serve the launcher's health if HEALTH_PORT is set; return a phrase for the line of readiness."""
    settings = server.settings
    if settings.health_port is None:
        return ""
    health = HealthServer(settings.bind_address, settings.health_port, watchdog)
    return f", health http://{server.reachable}:{health.port}/readyz"


def make_api_alone(settings: ServeSettings, backend: str) -> Api:
    """Make the HTTP API of models that run elsewhere."""
    if settings.api_port is None:
        raise BadSetting("API_BACKEND needs an API_PORT")
    check_tls(settings)
    check_files(settings)
    directory = checkpoint.resolve(settings.model)
    models = [name for name in settings.models.split(",") if name] or servable(directory).models
    return Api(settings, directory, backend, models)


def serve_api_alone(settings: ServeSettings, backend: str, make: MakeInterrupt) -> NoReturn:
    """Serve the HTTP API of models that run elsewhere.

    Raises:
        LaunchError: It does not start, or dies too often.
    """
    alone = make_api_alone(settings, backend)
    alone.check_settings()
    with alone as http_api:
        announce(f"hiscore is ready: API {http_api.url}, models at {backend}", settings.log_format)
        while True:
            stop_with(make)
            http_api.watch()
            time.sleep(POLL_SECONDS)


def announce(message: str, log_format: LogFormat) -> None:
    """Say that the server is ready: on standard output for people, in the log for programs."""
    if log_format == "json":
        log.info(message)
    else:
        print(message, flush=True)


def complain(message: str, log_format: LogFormat) -> None:
    """Say why the launcher exits."""
    if log_format == "json":
        log.error(message)
    else:
        print(f"error: {message}", file=sys.stderr)


def main() -> int:
    """Serve. The exit code is 0 after a signal, 2 for a bad setting, 1 for any other failure."""
    log_format: LogFormat = "text"
    configure(log_format, TEXT)
    make = MakeInterrupt()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    try:
        arguments = parse()
        try:
            take_settings(arguments.settings)
            check_variables(arguments.make_variables.split())
        except LaunchError as error:
            complain(str(error), log_format)
            return 2
        settings = ServeSettings()
        log_format = settings.log_format
        configure(log_format, TEXT)
        has_api = api.wanted(settings)
        if settings.api_backend:
            if arguments.check:
                make_api_alone(settings, settings.api_backend).check()
                announce("all checks passed: the HTTP API alone, nothing was started", log_format)
                return 0
            return serve_api_alone(settings, settings.api_backend, make)
        choice = choose(settings)
        if has_api:
            unstarted = Api(settings, choice.checkpoint, "localhost:1", choice.models)
            (unstarted.check if arguments.check else unstarted.check_settings)()
        if arguments.check:
            models = ", ".join(choice.models)
            announce(f"all checks passed: {models} on {choice.device}, nothing was started", log_format)
            return 0
        waiting = partial(stop_with, make)
        with Server(settings, while_waiting=waiting, choice=choice) as server, ExitStack() as stack:
            shared_memory = SharedMemoryWatch()
            http_api, api_url = None, ""
            if has_api:
                http_api = Api(settings, server.checkpoint, server.grpc_url, server.models)
                stack.callback(http_api.stop)
                try:
                    http_api.start()
                    api_url = f", API {http_api.url}"
                except LaunchError as error:
                    log.error("%s. The models are served without it; it is tried again later", error)

            def idle() -> None:
                stop_with(make)
                shared_memory.check()
                if http_api:
                    http_api.watch()

            watchdog = Watchdog(server, idle)
            health = start_health(server, watchdog)
            announce(
                f"hiscore is ready: models {', '.join(server.models)}; gRPC {server.grpc_url}, "
                f"HTTP {server.http_url}, metrics {server.metrics_url}{health}" + api_url,
                log_format,
            )
            watchdog.watch()
    except Stop:
        return 0
    except ValidationError as error:
        for complaint in complaints(error):
            complain(complaint, log_format)
        return 2
    except (LaunchError, CheckpointError) as error:
        complain(str(error), log_format)
        return 2 if isinstance(error, BadSetting | BadCheckpoint) else 1


if __name__ == "__main__":
    sys.exit(main())
