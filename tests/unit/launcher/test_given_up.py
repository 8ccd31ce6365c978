"""A start that waits for the end of a process that lives, by a clock of its own."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest

from hiscore.launcher.errors import NeverReady
from hiscore.launcher.process import Process
from hiscore.launcher.stubs import TOO_LONG_S, WAIT, GivenUp
from tests.support.timeouts import wait_until

SERVER, MODEL, OTHER = 10, 20, 30
# Elsewhere nothing is noticed, and the start times out.
pytestmark = pytest.mark.skipif(WAIT == "unknown", reason="the number of its system call is not known here")
WAITS = "import os, subprocess; child = subprocess.Popen(['sleep', '600']); os.waitpid(child.pid, 0)"


class Kernel:
    """Shows the threads of a server."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.now = proc, 0.0
        for pid, command in ((MODEL, "stub\0/tmp/models/scorer/1/model.py\0"), (OTHER, "stub\0")):
            (proc / str(pid)).mkdir()
            (proc / str(pid) / "cmdline").write_text(command)
        self.thread(0, "202 0x7f0 0x80 0x1 0x0 0x0 0x0 0x7ff 0x7f1")  # a futex
        self.thread(1, "running")
        self.given_up = GivenUp(SERVER, clock=lambda: self.now, proc=proc)

    def thread(self, number: int, call: str) -> None:
        task = self.proc / str(SERVER) / "task" / str(number)
        task.mkdir(parents=True, exist_ok=True)
        (task / "syscall").write_text(f"{call}\n")

    def waits_for(self, pid: int) -> None:
        self.thread(1, f"{WAIT} {pid:#x} 0x7ff 0x0 0x0 0x0 0x0 0x7ff 0x7f1")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_wait_that_does_not_end_is_named_with_its_model(kernel: Kernel) -> None:
    kernel.waits_for(MODEL)
    assert not kernel.given_up.look()
    kernel.now += TOO_LONG_S - 1
    assert not kernel.given_up.look()
    kernel.now += 1
    assert f"given up model scorer (pid {MODEL})" in kernel.given_up.look()


def test_a_process_that_ends_is_waited_for(kernel: Kernel) -> None:
    """One after the other, each for less than too long."""
    for pid in (MODEL, OTHER):
        kernel.waits_for(pid)
        assert not kernel.given_up.look()
        kernel.now += TOO_LONG_S - 1
        assert not kernel.given_up.look()
    kernel.thread(1, "running")
    kernel.now += TOO_LONG_S
    assert not kernel.given_up.look()


def test_where_the_kernel_shows_nothing_nothing_is_noticed(kernel: Kernel) -> None:
    kernel.waits_for(MODEL)
    given_up = GivenUp(SERVER + 1, clock=lambda: kernel.now, proc=kernel.proc)
    for _ in range(2):
        assert not given_up.look()
        kernel.now += TOO_LONG_S


@pytest.mark.slow
def test_a_real_wait_is_seen_and_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    process = Process([sys.executable, "-c", WAITS], dict(os.environ), tmp_path / "log", lock)
    try:
        steps = count()
        given_up = GivenUp(process.pid, clock=lambda: next(steps) * TOO_LONG_S)
        wait_until(lambda: bool(given_up.look()))
        monkeypatch.setattr("hiscore.launcher.process.GivenUp", lambda pid: given_up)
        with pytest.raises(NeverReady, match="given up a model"):
            process.wait_until(lambda: False, timeout_s=600)
    finally:
        process.kill()
        os.close(lock)
