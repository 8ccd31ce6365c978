"""Signals to make alone, to the launcher, and to a server that is still working on calls."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.workspace import sweep
from tests.server.busy import score, until_error
from tests.server.held import Holdable
from tests.server.leftovers import leftovers, server_below, wait_gone
from tests.support.processes import start_heeding_sigint
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

ROOT = Path(__file__).resolve().parents[2]
# -o: an installed environment is not looked at again, so that the test cannot change it.
MAKE = ["make", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed", "serve"]
LAUNCHER = [sys.executable, "-m", "hiscore.launcher"]
CALLS = 8
ITEMS = 10


def variables(checkpoint: Path, **settings: str) -> dict[str, str]:
    """The environment of a launcher on the CPU and on free ports, without the variables of `make test` itself."""
    free = {"HTTP_PORT": "0", "GRPC_PORT": "0", "METRICS_PORT": "0", "API_PORT": "0", "DEVICE": "cpu"}
    given = os.environ | free | {"MODEL": str(checkpoint)} | settings
    return {name: given[name] for name in given.keys() - {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}


@contextmanager
def serving(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Any]:
    """Run a command that serves; gives its process once it is ready, and has the line that says so in it."""
    with log.open("w") as stderr:
        process = start_heeding_sigint(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None
        # Or pytest would end the wait, and nobody would see the log.
        said, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        assert said, f"not ready within {TIMEOUT_S} seconds:\n{log.read_text()}"
        process.ready_line = process.stdout.readline()  # type: ignore[attr-defined]
        assert process.ready_line, f"not ready:\n{log.read_text()}"
        yield process
    finally:
        # After a failed test only: children of a process that has ended are not its children any more.
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.wait()


@contextmanager
def launched(command: list[str], checkpoint: Path, log: Path, **settings: Any) -> Iterator[tuple[Any, str]]:
    """Serve a checkpoint's models; gives the process and the server's gRPC address."""
    with serving(command, variables(checkpoint, **settings), log) as process:
        found = re.search(r"gRPC (\S+),", process.ready_line)
        assert found, process.ready_line
        yield process, found.group(1)


def stops(client: triton.InferenceServerClient) -> bool:
    """Whether a server takes no more calls."""
    try:
        return not client.is_server_ready()
    except InferenceServerException:
        return True


@contextmanager
def draining(
    command: list[str], signum: signal.Signals, checkpoint: Path, directory: Path, **settings: str
) -> Iterator[tuple[Any, list[Future[np.ndarray]], Holdable, str]]:
    """A server that got a signal with calls in flight, one of them held: process, calls, what holds it, name."""
    holdable = Holdable.make(directory)
    settings |= {"MODELS": "scorer", "HISCORE_MODEL_REPOSITORY": str(holdable.repository)}
    with (
        launched(command, checkpoint, directory / "log", **settings) as (process, address),
        triton.InferenceServerClient(address) as client,
        ThreadPoolExecutor(CALLS) as pool,
        holdable.held(),
    ):
        name, _ = server_below(process.pid)
        calls = [pool.submit(score, client, ITEMS)]
        holdable.wait_for(waiting=0)
        calls += [pool.submit(score, client, ITEMS) for _ in range(CALLS - 1)]
        holdable.wait_for(waiting=CALLS - 1)
        # To this process alone, unlike a Ctrl-C.
        process.send_signal(signum)
        wait_until(lambda: stops(client), (directory / "log").read_text)
        yield process, calls, holdable, name


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [MAKE, LAUNCHER], ids=["make", "launcher"])
def test_a_signal_drains_then_stops_everything(
    tiny_llama: Path, tmp_path: Path, command: list[str], signum: signal.Signals
) -> None:
    with draining(command, signum, tiny_llama, tmp_path, DRAIN_TIMEOUT_S=f"{TIMEOUT_S}") as (
        process, calls, holdable, name,
    ):  # fmt: skip
        assert process.poll() is None
        assert not any(call.done() for call in calls)
        holdable.release()
        code = process.wait(TIMEOUT_S)
        results = [call.result(TIMEOUT_S) for call in calls]
        assert all(result.shape == (ITEMS, 2) and np.isfinite(result).all() for result in results)
        assert leftovers(name) == []
        # make dies of the signal it got, the launcher has done its work.
        assert code == (-signum if command is MAKE else 0)


def test_calls_that_take_longer_than_a_drain_may_fail(tiny_llama: Path, tmp_path: Path) -> None:
    with draining(LAUNCHER, signal.SIGTERM, tiny_llama, tmp_path, DRAIN_TIMEOUT_S="1") as (
        process, calls, _, name,
    ):  # fmt: skip
        assert process.wait(TIMEOUT_S) == 0
        assert all(isinstance(call.exception(TIMEOUT_S), InferenceServerException) for call in calls)
        assert leftovers(name) == []


def test_a_killed_launcher_takes_its_server_along(tiny_llama: Path, tmp_path: Path) -> None:
    with launched(LAUNCHER, tiny_llama, tmp_path / "log", MODELS="scorer") as (process, _):
        name, pid = server_below(process.pid)
        assert psutil.pid_exists(pid)
        process.kill()
        wait_gone(name)
    # What nobody was left to remove, the next start removes: this one, or another test's that is at it already.
    sweep()
    wait_until(lambda: not leftovers(name), lambda: f"{leftovers(name)} is left")


def test_a_model_that_dies_ends_the_server_and_no_caller_waits(tiny_llama: Path, tmp_path: Path) -> None:
    """Triton 2.51 would go on, report ready, and never answer the calls in flight."""
    with (
        launched(LAUNCHER, tiny_llama, tmp_path / "log", MODELS="scorer", MAX_RESTARTS="off") as (
            process,
            address,
        ),
        triton.InferenceServerClient(address) as client,
        ThreadPoolExecutor(CALLS) as pool,
    ):
        name, _ = server_below(process.pid)
        stop = Event()
        calls = [pool.submit(until_error, lambda: score(client, 800), stop) for _ in range(CALLS)]
        time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        (stub,) = (child for child in children if "python_backend_stub" in child.name())
        stub.kill()
        assert process.wait(TIMEOUT_S) == 1
        try:
            assert all(isinstance(call.result(timeout=TIMEOUT_S), InferenceServerException) for call in calls)
        finally:
            stop.set()
        named = f"the process of model scorer (pid {stub.pid}) was killed by signal 9 (SIGKILL)"
        assert named in (tmp_path / "log").read_text()
        assert leftovers(name) == []


def slow_tritonserver(directory: Path) -> dict[str, str]:
    """The environment of a tritonserver that never gets ready, and does not stop when it is asked to."""
    wheel = find_distribution()
    server = directory / "tritonserver"
    server.write_text(
        '#!/bin/sh\n[ "$LD_TRACE_LOADED_OBJECTS" ] && exit\ntrap "" TERM\nwhile :; do sleep 0.1; done\n'
    )
    server.chmod(0o755)
    backend = directory / "backends/python"
    backend.mkdir(parents=True)
    for source in (*wheel.python_backend.iterdir(), wheel.stub):
        if not (backend / source.name).exists():
            (backend / source.name).symlink_to(source)
    return {
        "TRITONSERVER": str(server),
        "TRITON_BACKENDS": str(directory / "backends"),
        "TRITON_LIBS": ":".join(wheel.libraries),
    }


def servers_below(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "tritonserver"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [MAKE, LAUNCHER], ids=["make", "launcher"])
def test_a_signal_while_models_load_acts_at_once(
    tiny_llama: Path, tmp_path: Path, command: list[str], signum: signal.Signals
) -> None:
    """Nothing has been accepted: there is nothing to drain, and nothing to wait for."""
    environment = variables(tiny_llama, **slow_tritonserver(tmp_path), DRAIN_TIMEOUT_S="300")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: bool(servers_below(process.pid)), (tmp_path / "log").read_text)
        children = servers_below(process.pid)
        process.send_signal(signum)
        code = process.wait(TIMEOUT_S)
        assert not any(child.is_running() for child in children)
        assert code == (-signum if command is MAKE else 0)
    finally:
        process.kill()


def test_check_looks_at_everything_and_starts_nothing(tiny_lm: Path) -> None:
    def check(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        environment = variables(tiny_lm, **settings)
        return subprocess.run(
            [*LAUNCHER, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    done = check("--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all checks passed: score, tokenizer, scorer, decode on cpu, nothing was started\n"
    for settings, code, message in (
        ({"MODEL": "/nowhere"}, 2, "/nowhere"),
        ({"DTYPE": "fp8"}, 2, "DTYPE is fp8, which needs a GPU"),
        ({"SELECTOR": "dsa"}, 2, "SELECTOR is 'dsa'"),
        ({"PROMPT_LABELS": "a"}, 2, "PROMPT_LABELS must be two texts"),
        (
            {"HTTP_PORT": "eighty"},
            2,
            "HTTP_PORT: Input should be a valid integer, unable to parse string as an integer, not 'eighty'",
        ),
    ):
        done = check("--check", **settings)
        assert (done.returncode, done.stdout) == (code, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    alone = check("--check", API_BACKEND="localhost:1")
    assert (alone.returncode, "the HTTP API alone" in alone.stdout) == (0, True), alone.stderr
    # A start looks as well, and before it reads weights.
    done = check(CALIBRATION=str(tiny_lm / "config.json"))
    assert (done.returncode, "is no calibration" in done.stderr, "weights" in done.stderr) == (2, True, False)
