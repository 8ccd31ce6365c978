"""``make serve``: the server in the foreground until a SIGTERM or a SIGINT."""

import logging
import signal
import sys
from types import FrameType

from pydantic import ValidationError

from hiscore.checkpoint import CheckpointError
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.health import HealthServer
from hiscore.launcher.make_interrupt import MakeInterrupt
from hiscore.launcher.server import Server
from hiscore.launcher.shared_memory import SharedMemoryWatch
from hiscore.launcher.watchdog import Watchdog
from hiscore.logs import LogFormat, configure
from hiscore.settings import ServeSettings

log = logging.getLogger("hiscore.launcher")

TEXT = "%(asctime)s hiscore: %(message)s"


class Stop(BaseException):
    """A signal asks us to stop. Not an `Exception`, so that no handler on the way swallows it."""


def stop(signum: int, frame: FrameType | None) -> None:
    """Signal handler: raise `Stop` once. A second signal must not cut the drain short."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise Stop


def stop_with(make: MakeInterrupt) -> None:
    """Stop as if signalled if make got a SIGINT that did not reach us."""
    if make.interrupted():
        stop(signal.SIGINT, None)


def start_health(server: Server, watchdog: Watchdog) -> str:
    """Serve the launcher's health if HEALTH_PORT is set; what to add to the line that says we are ready."""
    settings = server.settings
    if settings.health_port is None:
        return ""
    health = HealthServer(settings.bind_address, settings.health_port, watchdog)
    return f", health http://{server.reachable}:{health.port}/readyz"


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
        settings = ServeSettings()
        log_format = settings.log_format
        configure(log_format, TEXT)
        with Server(settings) as server:
            shared_memory = SharedMemoryWatch(settings.shm_bytes)

            def idle() -> None:
                stop_with(make)
                shared_memory.check()

            watchdog = Watchdog(server, idle)
            health = start_health(server, watchdog)
            announce(
                f"hiscore is ready: models {', '.join(server.models)}; gRPC {server.grpc_url}, "
                f"HTTP {server.http_url}, metrics {server.metrics_url}{health}",
                log_format,
            )
            watchdog.watch()
    except Stop:
        return 0
    except ValidationError as error:
        for detail in error.errors():
            name = "_".join(map(str, detail["loc"])).upper()
            complain(f"{name}: {detail['msg']}, not {detail['input']!r}", log_format)
        return 2
    except (LaunchError, CheckpointError) as error:
        complain(str(error), log_format)
        return 1


if __name__ == "__main__":
    sys.exit(main())
