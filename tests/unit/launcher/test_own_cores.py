"""Which core each thread of a server may run on, when those that score get cores of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hiscore.launcher.own_cores import give_own_cores
from tests.support.timeouts import TIMEOUT_S

CORES = sorted(os.sched_getaffinity(0))
# In place of a tritonserver and its stubs: processes of three threads, the children with the paths of models.
PROGRAM = """
import os, subprocess, sys, threading, time
paths = os.environ.pop("MODELS", "").split()
children = [subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], path]) for path in paths]
for _ in range(2):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
time.sleep(600)
"""


def threads(process: psutil.Process) -> list[int]:
    return [thread.id for thread in process.threads()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[psutil.Process]:
    models = " ".join(f"{tmp_path}/{model}/1/model.py" for model in ("scorer", "decode"))
    command = [sys.executable, "-c", PROGRAM, PROGRAM, "tritonserver"]
    with subprocess.Popen(command, env={**os.environ, "MODELS": models}) as popen:
        process = psutil.Process(popen.pid)
        try:
            end = time.monotonic() + TIMEOUT_S
            while [len(threads(each)) for each in (process, *process.children())] != [3, 3, 3]:
                assert time.monotonic() < end
                time.sleep(0.01)
            yield process
        finally:
            for each in (*process.children(), process):
                each.kill()


def allowed(server: psutil.Process) -> dict[str, list[set[int]]]:
    """Where the threads of each process may run, the first thread's place first."""
    names = {server.cmdline()[4]: server} | {child.cmdline()[4]: child for child in server.children()}
    return {
        Path(name).parts[-3] if "/" in name else name: [
            os.sched_getaffinity(each) for each in threads(process)
        ]
        for name, process in names.items()
    }


@pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be shared out")
def test_the_thread_that_scores_has_a_core_to_itself(server: psutil.Process) -> None:
    rest, own = set(CORES[:-1]), {CORES[-1]}
    assert give_own_cores(server.pid, others=1) == [CORES[-1]]
    assert allowed(server) == {
        "tritonserver": [rest, rest, rest],
        "scorer": [own, rest, rest],
        "decode": [rest, rest, rest],
    }


def test_nothing_changes_where_there_are_too_few_cores(server: psutil.Process) -> None:
    assert give_own_cores(server.pid, others=len(CORES)) == []
    assert {frozenset(cores) for each in allowed(server).values() for cores in each} == {frozenset(CORES)}
