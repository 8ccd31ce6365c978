"""A process that is already running gets a limit, and its children from before do not."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hiscore.launcher.memory_limit import LEAST, MOST, data_bytes, default_allowance, limit_memory

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
    assert default_allowance(2**40) == MOST
    assert default_allowance(0) == LEAST
