"""The launcher's own HTTP endpoints for probes and Prometheus: is it alive, and should it get calls?

Triton's ``/v2/health/ready`` says yes even when a model is dead. These answers come from the watchdog.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from hiscore.launcher.addresses import family
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.preflight import free_shared_memory
from hiscore.launcher.versions import build_info
from hiscore.launcher.watchdog import Watchdog

METRICS = """\
# HELP hiscore_restarts_total Restarts of tritonserver by the launcher
# TYPE hiscore_restarts_total counter
hiscore_restarts_total {restarts}
# HELP hiscore_healthy Whether every model answered its last canary
# TYPE hiscore_healthy gauge
hiscore_healthy {healthy}
# HELP hiscore_shared_memory_free_bytes Room that is left in /dev/shm
# TYPE hiscore_shared_memory_free_bytes gauge
hiscore_shared_memory_free_bytes {free}
# HELP hiscore_build_info What this server runs
# TYPE hiscore_build_info gauge
hiscore_build_info{{{build}}} 1
"""


class HealthServer:
    """Serves ``GET /livez``, ``/readyz`` and ``/metrics`` until `close`; for port 0, `port` is the free one taken.

    Raises:
        LaunchError: The port cannot be used.
    """

    def __init__(self, address: str, port: int, watchdog: Watchdog) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a silent client must not keep a thread

            def do_GET(self) -> None:
                self.respond(with_body=True)

            def do_HEAD(self) -> None:
                self.respond(with_body=False)

            def respond(self, with_body: bool) -> None:
                status, text = answer(urlsplit(self.path).path, watchdog)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log: probes come every few seconds."""

        class Http(ThreadingHTTPServer):
            address_family = family(address)

        try:
            self._http = Http((address, port), Handler)
        except OSError as error:
            raise LaunchError(f"HEALTH_PORT {port} cannot be used on {address}: {error.strerror}") from None
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, name="hiscore-health", daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def answer(path: str, watchdog: Watchdog) -> tuple[int, str]:
    """Return status and body for a path."""
    unready = watchdog.unready
    if path == "/livez":
        return (200, "ok\n") if watchdog.alive else (503, "the watchdog does not run\n")
    if path == "/readyz":
        return (503, f"{unready}\n") if unready else (200, "ok\n")
    if path == "/metrics":
        return 200, metrics(watchdog.restarts, healthy=not unready)
    return 404, "not found\n"


def metrics(restarts: int, healthy: bool) -> str:
    """The launcher's page for Prometheus."""
    build = ",".join(f'{name}="{value}"' for name, value in build_info().items())
    return METRICS.format(restarts=restarts, healthy=int(healthy), free=free_shared_memory(), build=build)
