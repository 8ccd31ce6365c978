"""How a death is told: the signal, the exit code, and the kernel's want of memory."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hiscore.launcher.deaths import OomKills, describe, zombie_exit_code
from tests.support.timeouts import TIMEOUT_S


@pytest.mark.parametrize(
    ("code", "out_of_memory", "expected"),
    [
        (0, False, "ended with exit code 0"),
        (3, True, "ended with exit code 3"),
        (-11, True, "was killed by signal 11 (SIGSEGV)"),
        (-9, False, "was killed by signal 9 (SIGKILL)"),
        (-9, True, "was killed by signal 9 (SIGKILL), by the kernel, for lack of memory"),
        (-63, False, "was killed by signal 63 (unknown)"),
        (None, False, "has died"),
        (None, True, "has died, by the kernel, for lack of memory"),
    ],
)
def test_description(code: int | None, out_of_memory: bool, expected: str) -> None:
    assert describe(code, out_of_memory).startswith(expected)
    assert ("lack of memory" in describe(code, out_of_memory)) == ("lack of memory" in expected)


@pytest.mark.parametrize(
    ("end", "expected"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11)]
)
def test_the_status_of_a_process_that_nobody_has_reaped(end: str, expected: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", end], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + TIMEOUT_S
    while (code := zombie_exit_code(process.pid)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert code == expected == process.wait()
    assert zombie_exit_code(process.pid) is None  # reaped


def test_a_process_that_lives_has_no_status() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert zombie_exit_code(process.pid) is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


V2 = ("0::/kubepods/pod1", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
# A container sees its own group as the root of the mount.
INSIDE = ("0::/", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
V1 = ("3:memory:/docker/abc", "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")


@pytest.mark.parametrize(
    ("group", "file"),
    [
        (V2, "sys/fs/cgroup/kubepods/pod1/memory.events"),
        (INSIDE, "sys/fs/cgroup/memory.events"),
        (V1, "sys/fs/cgroup/memory/docker/abc/memory.oom_control"),
        (V2, "proc/vmstat"),  # no group counts
        (None, "proc/vmstat"),
    ],
)
def test_kills_since_the_start_count_wherever_the_kernel_counts_them(
    tmp_path: Path, group: tuple[str, str] | None, file: str
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    if group is not None:
        (tmp_path / "proc/self/cgroup").write_text(f"{group[0]}\n")
        (tmp_path / "proc/self/mountinfo").write_text(f"{group[1]}\n")
    counts = tmp_path / file
    counts.parent.mkdir(parents=True, exist_ok=True)
    counts.write_text("oom 9\noom_kill 4\n")
    kills = OomKills(tmp_path)
    assert not kills.risen()
    counts.write_text("oom 99\noom_kill 4\n")
    assert not kills.risen()
    counts.write_text("oom 99\noom_kill 5\n")
    assert kills.risen()


def test_where_nothing_is_counted_nothing_has_risen(tmp_path: Path) -> None:
    assert not OomKills(tmp_path).risen()
