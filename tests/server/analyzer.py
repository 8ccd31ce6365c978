"""NVIDIA's perf_analyzer against a server."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.launcher import Server
from tests.server.plain import PlainTriton

PERF = Path(__file__).resolve().parents[2] / "perf"
REQUESTS = 40
# The runner's exit code when it cannot install the tool.
UNAVAILABLE = 69


def installed() -> list[str]:
    """The command; skips the test where it cannot be had."""
    command = [str(PERF / "perf-analyzer")]
    done = analyze(command, "--version")
    # Where it can be installed, not being able to is a failure.
    installable = platform.machine() == "x86_64" and (glibc() >= (2, 38) or shutil.which("apt-get"))
    if done.returncode == UNAVAILABLE and not installable:
        pytest.skip(f"perf_analyzer cannot be installed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "Perf Analyzer Version" in done.stdout + done.stderr
    return command


def glibc() -> tuple[int, ...]:
    return tuple(map(int, platform.libc_ver()[1].split(".")))


def analyze(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def drive(
    command: list[str],
    server: Server | PlainTriton,
    model: str,
    report: Path,
    *more: str,
    way: str = "grpc",
    data: Path | None = None,
) -> str:
    """Make REQUESTS calls, of the shipped file of the model unless data names another."""
    data = data or PERF / "data" / f"{'score' if model == 'tokenizer' else model}.json"
    url = server.grpc_url if way == "grpc" else server.http_address
    done = analyze(
        command,
        *("-m", model, "-i", way, "-u", url, "--concurrency-range", "2"),
        *("--input-data", str(data), "--request-count", str(REQUESTS)),
        *("-f", str(report), *more),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
