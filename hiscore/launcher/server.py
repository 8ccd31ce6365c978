"""A running hiscore server, from settings to shutdown."""

import logging
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hiscore.checkpoint import check_digests
from hiscore.launcher.addresses import in_url, is_ipv6, reachable
from hiscore.launcher.canary import CANARY_MISSES, CANARY_PATIENCE, Canaries, Canary, HttpTransport, probes
from hiscore.launcher.choice import Choice, choose
from hiscore.launcher.command import tritonserver_flags
from hiscore.launcher.errors import LaunchError, NeverReady
from hiscore.launcher.ports import Ports
from hiscore.launcher.process import Process, default_allowance, failure_reason, is_ready, limit_memory
from hiscore.launcher.repository import with_settings, write_repository
from hiscore.launcher.workspace import Workspace
from hiscore.server.host import available_host_bytes
from hiscore.server.progress import read_progress
from hiscore.server.run_directory import VARIABLE
from hiscore.settings import ServeSettings

log = logging.getLogger(__name__)

# Seconds between the end of Triton's own drain and killing it.
GRACE_SECONDS = 10
# On a busy machine Triton 2.51 sometimes gives up a model that loads: it aborts over a lock of its Python backend,
# or is never ready (`GivenUp`). If a model is at fault, it ends with an exit code instead.
CRASHES = {-signal.SIGABRT, -signal.SIGSEGV}
STARTS_AFTER_CRASHES = 2


class Server:
    """``with Server(ServeSettings(http_port=0, ...)) as server``: ready inside, nothing left afterwards.

    Once started, `checkpoint`, `ports`, `models` and `left_out` (model -> reason) say what was chosen.
    Start it from a thread that lives as long as the server: the kernel stops the server when that thread ends.

    Args:
        log_path: The file of the server's output; None: this process's standard error.
        while_waiting: Called several times a second while models load; ends the start by raising.
        choice: What was chosen for `settings` already.
    """

    checkpoint: Path
    ports: Ports
    models: tuple[str, ...]
    left_out: dict[str, str]

    def __init__(
        self,
        settings: ServeSettings,
        log_path: Path | None = None,
        while_waiting: Callable[[], None] = lambda: None,
        choice: Choice | None = None,
    ) -> None:
        self.settings, self._while_waiting, self._chosen = settings, while_waiting, choice
        self.log_path = log_path
        self._workspace: Workspace | None = None
        self._process: Process | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def http_address(self) -> str:
        return f"{in_url(reachable(self._http_host))}:{self.ports.http}"

    @property
    def http_url(self) -> str:
        """``http://host:port`` of HTTP."""
        return f"http://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        """``host:port`` of gRPC, as `ScoreClient` and tritonclient.grpc take it."""
        return f"{self.reachable}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """The page that Prometheus scrapes."""
        return f"http://{self.metrics_address}/metrics"

    @property
    def metrics_address(self) -> str:
        return f"{self.reachable}:{self.ports.metrics}"

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def name(self) -> str:
        """The server's id: the name of its directory and the prefix of its shared memory."""
        return self._own_workspace.name

    def fault(self) -> str:
        """Say what is wrong with its processes, so that only a restart helps; empty if nothing is."""
        return self._running.fault()

    def start(self) -> None:
        """Start and wait until every model is ready.

        Raises:
            LaunchError: A check fails, a port is taken, a model does not load, or it takes too long.
            CheckpointError: There is no such checkpoint, or one of its files does not match its SHA256SUMS.
        """
        settings = self.settings
        self._choice = choice = self._chosen or choose(settings)
        check_digests(choice.checkpoint)
        self.checkpoint, self.models, self.left_out = choice.checkpoint, choice.models, choice.left_out
        try:
            self._workspace = Workspace()
            models = self._workspace.path / "models"
            models.mkdir()
            write_repository(choice.repository, models, choice.changes)
            choice.distribution.link_backends(self._workspace.path / "backends")
            choice.distribution.link_libpython(self._workspace.path / "lib")
            requested = Ports(settings.http_port, settings.grpc_port, settings.metrics_port)
            self._launch(requested)
        except OSError as error:  # a full disk, say
            self.stop()
            raise LaunchError(
                f"{tempfile.gettempdir()} (TMPDIR) cannot be written: {error.strerror}"
            ) from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Drain, then remove every trace. Does nothing if the server is not running."""
        if self._process:
            # A dead or stopped model never answers: draining would only keep its callers waiting.
            if self._process.fault():
                self._process.kill()
            self._process.stop(self.settings.drain_timeout_s + GRACE_SECONDS)
        if self._workspace:
            self._workspace.remove()
        self._process = self._workspace = None

    def kill(self) -> None:
        """Kill the server's processes without a drain: clients that wait for an answer get an error at once."""
        self._running.kill()
        self._own_workspace.remove_shared_memory()

    def restart(self) -> None:
        """Start again after `kill`, on the same ports and with the same repository, and wait until ready.

        After a `LaunchError` no process is left, and another restart may be tried.
        """
        self._launch(self.ports)

    def start_canaries(self) -> Canaries | None:
        """Start canaries for the running server; None if CANARY_SECONDS turns them off."""
        settings = self.settings
        if not settings.canary_seconds:
            return None
        transport = HttpTransport(
            self.http_address, self.metrics_address, CANARY_PATIENCE * settings.canary_seconds
        )
        directory = self._own_workspace.path
        canaries = [
            Canary(probe, transport, partial(read_progress, directory, probe.model))
            for probe in probes(self.models, self.checkpoint)
        ]
        return Canaries(canaries, settings.canary_seconds, CANARY_MISSES)

    def _launch(self, requested: Ports) -> None:
        settings, workspace = self.settings, self._own_workspace
        tries = STARTS_AFTER_CRASHES
        while True:
            self.ports = requested.choose(settings.bind_address)
            on_gpu = self._choice.device == "cuda"
            flags = tritonserver_flags(settings, workspace.path, self.ports, self._http_host, on_gpu)
            command = [str(self._choice.distribution.tritonserver), *flags]
            inherited = self._choice.distribution.environment(workspace.path / "lib")
            environment = with_settings(inherited, settings, self.checkpoint) | {
                VARIABLE: str(workspace.path)
            }
            process = Process(command, environment, self.log_path, workspace.lock)
            self._process = process
            try:
                process.wait_until(self._is_ready, settings.ready_timeout_s)
                limit_memory(process.pid, default_allowance(available_host_bytes()))
                return
            except LaunchError as error:
                process.stop(drain_s=0)
                never_ready = isinstance(error, NeverReady)
                if tries and (never_ready or process.exit_code() in CRASHES):
                    fault = error if never_ready else "tritonserver crashed while starting"
                    log.warning("%s: trying again", fault)
                    workspace.remove_shared_memory()
                    tries -= 1
                    continue
                # Somebody took a port between our choice and Triton's use of it: choose again.
                if self.ports != requested and self.ports.taken(settings.bind_address):
                    continue
                raise LaunchError(f"{error}{failure_reason(self.log_path)}") from None
            except BaseException:  # a signal: nothing has been accepted that could be drained
                process.kill()
                raise

    def _is_ready(self) -> bool:
        self._while_waiting()
        return is_ready(self.http_address, self.metrics_address, self.name)

    @property
    def reachable(self) -> str:
        """The host at which this machine reaches the server, as it is written before a port."""
        return in_url(reachable(self.settings.bind_address))

    @property
    def _http_host(self) -> str:
        # Triton's HTTP has no TLS: if gRPC has it, HTTP is only for this machine, such as a proxy on it.
        address = self.settings.bind_address
        return ("::1" if is_ipv6(address) else "127.0.0.1") if self.settings.tls_cert else address

    @property
    def _own_workspace(self) -> Workspace:
        assert self._workspace is not None, "the server has not been started"
        return self._workspace

    @property
    def _running(self) -> Process:
        assert self._process is not None, "the server is not running"
        return self._process
