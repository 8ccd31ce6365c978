"""A server's process and its stubs, with shells in their place."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.process import (
    LEAST_ALLOWED,
    MAX_LINES,
    MOST_ALLOWED,
    Process,
    data_bytes,
    default_allowance,
    error_lines,
    failure_reason,
    limit_memory,
)
from hiscore.launcher.stubs import STOPPED_TOO_LONG_S
from tests.support.timeouts import TIMEOUT_S, wait_until

PR_SET_CHILD_SUBREAPER = 36
# A server with two stubs that ends, as tritonserver does, when it gets a SIGTERM.
SERVER = "trap 'kill $a $b; exit 0' TERM; sleep 60 & a=$!; sleep 60 & b=$!; wait; wait"
STUBBORN = "trap '' TERM; while :; do sleep 0.01; done"


@pytest.fixture(autouse=True)
def reaper() -> Iterator[None]:
    """Stubs of a dead server become our children, as if we were a container's first process."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    """Starts a shell script; what is left of it is killed at the end."""
    started: list[Process] = []
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)

    def start(script: str) -> Process:
        started.append(Process(["/bin/sh", "-c", script], dict(os.environ), tmp_path / "log", lock))
        return started[-1]

    yield start
    for process in started:
        process.kill()
    os.close(lock)


def stubs(process: Process, count: int = 2) -> list[psutil.Process]:
    wait_until(lambda: len(children(process)) == count)
    return children(process)


def children(process: Process) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if child.name() == "sleep"]


def test_it_is_ready_when_it_says_so(start: Callable[[str], Process]) -> None:
    looks = iter([False, False, True])
    process = start(SERVER)
    process.wait_until(lambda: next(looks), timeout_s=TIMEOUT_S)
    assert process.exit_code() is None


def test_one_that_ends_before_it_is_ready_is_an_error(start: Callable[[str], Process]) -> None:
    with pytest.raises(LaunchError, match="stopped before it was ready: it ended with exit code 3"):
        start("exit 3").wait_until(lambda: False, timeout_s=TIMEOUT_S)


def test_one_that_takes_too_long_is_an_error(start: Callable[[str], Process]) -> None:
    with pytest.raises(LaunchError, match=r"not ready after 0 seconds \(READY_TIMEOUT_S\)"):
        start(SERVER).wait_until(lambda: False, timeout_s=0)


def test_a_stub_that_is_reaped_while_it_is_looked_at_is_missed(
    start: Callable[[str], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(SERVER)
    first, _ = stubs(process)
    process.wait_until(lambda: True, timeout_s=TIMEOUT_S)
    status = psutil.Process.status

    def reaped(child: psutil.Process) -> str:
        if child.pid == first.pid:
            raise psutil.NoSuchProcess(child.pid)
        return status(child)

    monkeypatch.setattr(psutil.Process, "status", reaped)
    assert process.fault()


@pytest.mark.parametrize("script", [SERVER, "sleep 60 & sleep 60 & exec sleep 60"], ids=["gone", "zombie"])
def test_a_stub_that_dies_right_after_the_start_is_missed(
    start: Callable[[str], Process], script: str
) -> None:
    process = start(script)
    first, _ = stubs(process)
    process.wait_until(lambda: True, timeout_s=TIMEOUT_S)
    first.kill()  # before anybody has asked for lost stubs
    wait_until(lambda: process.fault() != "")
    assert process.fault()  # it stays missed


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nothing_is_left_of_it_or_its_stubs(start: Callable[[str], Process], end: str) -> None:
    process = start(SERVER)
    two = stubs(process)
    process.kill() if end == "kill" else process.stop(drain_s=30)
    assert process.exit_code() is not None
    assert not any(stub.is_running() for stub in two)


def test_one_that_does_not_stop_is_killed(start: Callable[[str], Process], tmp_path: Path) -> None:
    process = start(STUBBORN.replace("while", "echo here; while"))
    wait_until(lambda: "here" in (tmp_path / "log").read_text())
    process.stop(drain_s=0)
    assert process.exit_code() == -signal.SIGKILL


def test_one_that_has_ended_may_be_stopped_and_killed(start: Callable[[str], Process]) -> None:
    process = start("exit 0")
    wait_until(lambda: process.exit_code() == 0)
    process.stop(drain_s=30)
    process.kill()
    assert process.exit_code() == 0


def test_its_output_goes_to_the_log(start: Callable[[str], Process], tmp_path: Path) -> None:
    process = start("echo out; echo err >&2")
    wait_until(lambda: process.exit_code() == 0)
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_it_says_how_a_stub_and_a_server_ended(start: Callable[[str], Process]) -> None:
    process = start("sleep 60 & sleep 60 & exec sleep 60")  # reaps nothing, like tritonserver without calls
    first, _ = stubs(process)
    process.wait_until(lambda: True, timeout_s=TIMEOUT_S)
    assert process.fault() == ""
    first.send_signal(signal.SIGSEGV)
    wait_until(lambda: process.fault() != "")
    expected = f"the process of a model (pid {first.pid}) was killed by signal 11 (SIGSEGV)"
    assert process.fault().startswith(expected)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: process.exit_code() is not None)
    assert process.fault().startswith("tritonserver stopped by itself: it was killed by signal 9 (SIGKILL)")


def test_a_stopped_stub_is_a_fault_after_a_while(start: Callable[[str], Process]) -> None:
    process = start(SERVER)
    first, _ = stubs(process)
    process.wait_until(lambda: True, timeout_s=TIMEOUT_S)
    now = 100.0
    process._stubs._clock = lambda: now
    first.suspend()
    wait_until(lambda: first.status() == psutil.STATUS_STOPPED)
    assert process.fault() == ""  # as under a debugger
    now += STOPPED_TOO_LONG_S
    assert "has been stopped by a signal" in process.fault()
    first.resume()
    wait_until(lambda: first.status() != psutil.STATUS_STOPPED)
    assert process.fault() == ""


def test_the_error_lines_of_a_log_keep_their_continuation() -> None:
    log = (
        'I1121 07:00:00.000001 1 a.cc:1] "fine"\n'
        'E1121 07:00:00.000002 1 b.cc:2] "failed to load: RuntimeError: why"\n\nAt:\n  model.py(3)\n'
        'I1121 07:00:00.000003 1 c.cc:3] "fine again"\nE1121 07:00:00.000004 1 d.cc:4] "and this"\n'
    )
    kept = error_lines(log)
    assert [line.split("] ")[-1] for line in kept] == [
        '"failed to load: RuntimeError: why"',
        "At:",
        "  model.py(3)",
        '"and this"',
    ]


def test_the_newest_errors_are_kept_but_not_those_that_come_without_a_gpu() -> None:
    harmless = "E1121 07:00:00.000001 1 a.cc:1] CudaDriverHelper has not been initialized"
    errors = [f"{level}1121 07:00:00.000001 1 a.cc:1] {place}" for place in range(30) for level in "EF"]
    lines = [*errors, harmless, "W1121 07:00:00.000001 1 a.cc:1] a warning"]
    assert error_lines("\n".join(lines)) == errors[-MAX_LINES:]


def test_without_errors_the_end_of_the_log_must_do() -> None:
    lines = [f"I1121 07:00:00.000001 1 a.cc:1] {place}" for place in range(30)]
    assert error_lines("\n".join(lines)) == lines[-MAX_LINES:]


def test_the_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("E1121 07:00:00.000001 1 a.cc:1] broken\n")
    assert failure_reason(log) == f"\n  E1121 07:00:00.000001 1 a.cc:1] broken\n(whole log: {log})"
    assert "the log above" in failure_reason(None)


MIB = 2**20
# Takes as many MiB as it is told, and says whether it could.
TAKES = """
import sys
for line in sys.stdin:
    try:
        taken = bytearray(int(line) << 20)
        print("taken", flush=True)
    except MemoryError:
        print("refused", flush=True)
"""


@pytest.fixture
def process() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def take(process: "subprocess.Popen[str]", mebibytes: int) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{mebibytes}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_it_may_take_its_allowance_and_no_more(process: "subprocess.Popen[str]") -> None:
    assert take(process, 512) == "taken"  # the control
    assert take(process, 0) == "taken"
    limit_memory(process.pid, 256 * MIB)
    assert take(process, 200) == "taken"
    assert take(process, 0) == "taken"
    assert take(process, 300) == "refused"
    assert take(process, 200) == "taken"


def test_a_process_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    limit_memory(process.pid, 1)
    assert "no limit" in caplog.text


def test_a_hard_limit_stays(process: "subprocess.Popen[str]") -> None:
    take(process, 0)
    hard = data_bytes(process.pid) + 64 * MIB
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (hard, hard))
    limit_memory(process.pid, 256 * MIB)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (hard, hard)


def test_the_default_is_a_quarter_within_bounds() -> None:
    assert default_allowance(8 * 2**30) == 2 * 2**30
    assert default_allowance(2**40) == MOST_ALLOWED
    assert default_allowance(0) == LEAST_ALLOWED
