"""A tritonserver: wait until it is ready, see what is wrong with it, bound the memory that calls take in it."""

import http.client
import json
import logging
import re
import resource
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hiscore.launcher.child import POLL_SECONDS, Child
from hiscore.launcher.deaths import OomKills, describe
from hiscore.launcher.errors import LaunchError, NeverReady
from hiscore.launcher.stubs import GivenUp, Stubs

log = logging.getLogger(__name__)

# Triton's lines start with level, date and time: "E1121 07:58:01.123456 ...".
LINE_START = re.compile(r"([EWIF])\d{4} \d\d:\d\d:\d\d")
MAX_LINES = 15
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs, whatever proxy the environment names."""
# Logged as errors whenever there is no GPU.
HARMLESS = ("CudaDriverHelper has not been initialized", "unable to create stream for")
# Memory that calls may take in tritonserver itself, in bytes: a share of what is free, within bounds.
MOST_ALLOWED = 4 * 2**30
LEAST_ALLOWED = 2**28
SHARE_ALLOWED = 4


class Process(Child):
    """A tritonserver, and its stubs."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_path: Path | None, lock: int
    ) -> None:
        """Start the command, which keeps the file descriptor `lock` open, as its children do."""
        self._oom_kills = OomKills()
        super().__init__(command, environment, log_path, [lock])
        self._stubs = Stubs(self.pid)

    def fault(self) -> str:
        """Say what is wrong with the server or one of its models; empty if nothing is."""
        code = self.exit_code()
        if code is None:
            self._stubs.look()
            return self._stubs.fault()
        # It took its children along.
        return f"tritonserver stopped by itself: it {describe(code, self._oom_kills.risen())}"

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `ready` returns True.

        Raises:
            NeverReady: Triton waits for what will not come.
            LaunchError: The process has ended, or it takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        given_up = GivenUp(self.pid)
        while not ready():
            code = self.exit_code()
            if code is not None:
                end = describe(code, self._oom_kills.risen())
                raise LaunchError(f"tritonserver stopped before it was ready: it {end}")
            if time.monotonic() > deadline:
                raise LaunchError(f"tritonserver was not ready after {timeout_s} seconds (READY_TIMEOUT_S)")
            if fault := given_up.look():
                raise NeverReady(fault)
            time.sleep(POLL_SECONDS)
        # Take stock of the stubs now: one that dies before the next check would go unnoticed.
        self._stubs.look()


def is_ready(http_address: str, metrics_address: str, server_id: str) -> bool:
    """Tell whether the server at ``host:port`` is up, with every model loaded and its metrics.

    Another server may be listening there, which calls itself by another `server_id`.
    """
    try:
        name = json.loads(_get(http_address, "/v2")).get("name")
        _get(http_address, "/v2/health/ready")
        _get(metrics_address, "/metrics")
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return bool(name == server_id)


def _get(address: str, path: str) -> bytes:
    with DIRECT.open(f"http://{address}{path}", timeout=5) as response:
        body: bytes = response.read()
    return body


def failure_reason(log_path: Path | None) -> str:
    """Say why a server stopped, as the end of a message: its log's error lines, and where the whole log is."""
    if log_path is None:
        return "; the log above says why"
    lines = error_lines(log_path.read_text(errors="replace"))
    return "".join(f"\n  {line}" for line in lines) + f"\n(whole log: {log_path})"


def error_lines(log: str) -> list[str]:
    """The last error messages of a log, each with the lines that continue it."""
    kept: list[str] = []
    level = ""
    for line in log.splitlines():
        start = LINE_START.match(line)
        level = start.group(1) if start else level
        if level in ("E", "F") and line.strip() and not any(text in line for text in HARMLESS):
            kept.append(line)
    return kept[-MAX_LINES:] or log.splitlines()[-MAX_LINES:]


def default_allowance(available: int) -> int:
    """Compute the bytes that calls may take, of those that are left once all models are loaded."""
    return min(MOST_ALLOWED, max(LEAST_ALLOWED, available // SHARE_ALLOWED))


def limit_memory(pid: int, allowance: int) -> None:
    """Bound the bytes that calls may take in a tritonserver, which unpacks compressed ones without any limit.

    A megabyte of gzip holds a gigabyte of zeros, and Triton 2.51 can neither refuse compression nor stop
    unpacking. So once Triton is ready, the kernel lets it have a fixed amount more (RLIMIT_DATA). Over HTTP, what
    does not fit gets an error; where Triton does not check an allocation it aborts, and the watchdog restarts it.

    The limit is set from outside, on this process alone: its models were started before and have none. It counts
    private writable memory, but none that is only reserved, as CUDA does. Threads, whose stacks count, have all
    been started by then.
    """
    try:
        limit = data_bytes(pid) + allowance
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, hard))
    except OSError as error:
        log.warning("no limit on what calls may take in tritonserver: %s", error)
        return
    log.info("calls may take %d MiB in tritonserver itself", allowance >> 20)


def data_bytes(pid: int) -> int:
    """Read the size of a process's memory that RLIMIT_DATA counts."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
