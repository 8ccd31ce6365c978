"""Faults under load: the launcher notices them, the server comes back, and no caller waits forever."""

import os
import re
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher.canary import CANARY_MISSES
from hiscore.launcher.repository import SHIPPED
from hiscore_client import ScoreClient
from tests.server.busy import score, until_error
from tests.server.leftovers import leftovers, server_below
from tests.server.test_launcher_signals import LAUNCHER, launched
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = pytest.mark.server

MODELS = ("tokenizer", "scorer", "decode")
CALLERS = 6


@dataclass
class Watched:
    """A server under its launcher, and what the launcher says about it."""

    process: Any
    address: str
    health: str
    log: Path

    def stub(self, model: str) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "python_backend_stub" in child.name() and f"/{model}/" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"{model} has no process")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.health}{path}", timeout=TIMEOUT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, lambda: self.log.read_text()[-4_000:])

    def restarts(self) -> int:
        found = re.search(r"^hiscore_restarts_total (\d+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found
        return int(found.group(1))


@contextmanager
def watched(checkpoint: Path, log: Path, command: list[str] = LAUNCHER, **settings: str) -> Iterator[Watched]:
    with launched(command, checkpoint, log, HEALTH_PORT="0", **settings) as (process, address):
        found = re.search(r"health (http://\S+)/readyz", process.ready_line)
        assert found
        yield Watched(process, address, found.group(1), log)
        assert process.poll() is None
        name, _ = server_below(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert leftovers(name) == []


def generate(address: str) -> int:
    with ScoreClient(address) as client:
        return len(list(client.generate("A fruit is", max_tokens=1_500, ignore_eos=True, timeout=TIMEOUT_S)))


@contextmanager
def loaded(server: Watched) -> Iterator[list[Future[Exception | None]]]:
    """Callers of the scorer and of decode, each of which calls again until a call fails."""
    stop = Event()
    with triton.InferenceServerClient(server.address) as client, ThreadPoolExecutor(CALLERS) as pool:
        calls = [lambda: score(client, 800)] * 4 + [lambda: generate(server.address)] * 2
        try:
            yield [pool.submit(until_error, call, stop) for call in calls]
        finally:
            stop.set()


def works(address: str) -> bool:
    """Whether the whole chain answers: text to scores, and text to text."""
    with ScoreClient(address) as client:
        result = client.score(
            "Is it a fruit? ", ["apple", "stone"], label_token_ids=[7, 9], timeout=TIMEOUT_S
        )
        text = list(client.generate("A fruit is", max_tokens=2, timeout=TIMEOUT_S))
    return result.scores.shape == (2, 2) and text[-1].finish_reason in ("length", "stop")


def test_a_killed_model_is_restored_and_every_call_under_way_gets_an_error(
    tiny_lm: Path, tmp_path: Path
) -> None:
    """Two models in turn, in one life of the launcher. How a dead process is noticed is the same for all."""
    with watched(tiny_lm, tmp_path / "log") as server:
        assert server.get("/readyz") == (200, "ok\n")
        assert works(server.address)
        for times, model in enumerate(("scorer", "decode"), start=1):
            with loaded(server) as calls:
                time.sleep(0.5)
                old = server.stub(model)
                old.kill()
                server.wait(lambda: server.get("/readyz")[0] == 503)
                errors = [call.result(TIMEOUT_S) for call in calls]
                assert all(errors), errors
                assert server.get("/livez")[0] == 200
            server.wait(lambda: server.get("/readyz")[0] == 200)
            assert server.restarts() == times
            assert not old.is_running()
            assert works(server.address)


@pytest.mark.exhaustive
def test_a_stopped_model_is_restored(tiny_lm: Path, tmp_path: Path) -> None:
    """With the settings as they are; Triton says that the model is ready, and its calls fail."""
    with watched(tiny_lm, tmp_path / "log", MODELS="scorer") as server:
        stub = server.stub("scorer")
        stub.send_signal(signal.SIGSTOP)
        server.wait(lambda: server.get("/readyz")[0] == 503)
        server.wait(lambda: server.get("/readyz")[0] == 200)
        assert server.restarts() == 1
        assert not stub.is_running()
        assert f"model scorer (pid {stub.pid}) has been stopped by a signal" in server.log.read_text()


# Added to a model's own model.py: while the file exists, it answers nothing, and its process looks well.
HANG = """
import os
import time

_execute = TritonPythonModel.execute


def _hang(self, requests):
    while os.path.exists({flag!r}):
        time.sleep(0.05)
    return _execute(self, requests)


TritonPythonModel.execute = _hang
"""


def hanging_repository(root: Path, flag: Path, hang: str = HANG) -> Path:
    """A model repository whose models hang while a file exists."""
    shutil.copytree(SHIPPED, root)
    for model in MODELS:
        with (root / model / "1/model.py").open("a") as code:
            code.write(hang.format(flag=str(flag)))
    return root


@pytest.mark.exhaustive
def test_a_model_that_hangs_is_found_by_its_canary(tiny_lm: Path, tmp_path: Path) -> None:
    """Its process is alive, Triton says that it is ready, and nothing is answered. All models hang at once."""
    flag = tmp_path / "hang"
    settings = {
        "CANARY_SECONDS": "5",
        "HISCORE_MODEL_REPOSITORY": str(hanging_repository(tmp_path / "repository", flag)),
    }
    with watched(tiny_lm, tmp_path / "log", **settings) as server:
        time.sleep(12)  # answered canaries are not a fault
        assert server.get("/readyz") == (200, "ok\n")
        stubs = [server.stub(model) for model in MODELS]
        with triton.InferenceServerClient(server.address) as client, ThreadPoolExecutor(1) as pool:
            flag.touch()
            call = pool.submit(score, client, 1)
            missed = f"no answer from {', '.join(MODELS)}\n"
            server.wait(lambda: server.get("/readyz") == (503, missed))
            server.wait(lambda: server.restarts() == 1)
            assert isinstance(call.exception(TIMEOUT_S), InferenceServerException)
        flag.unlink()
        server.wait(lambda: server.get("/readyz")[0] == 200)
        assert not any(stub.is_running() for stub in stubs)
        assert works(server.address)
        text = server.log.read_text()
        # Two misses are no fault.
        assert max(text.count(f"model {model} has missed a canary") for model in MODELS) == CANARY_MISSES
        assert all(f"model {model} has missed a canary" in text for model in MODELS)


@pytest.mark.exhaustive
def test_a_busy_model_is_not_taken_for_a_hanging_one(tiny_llama: Path, tmp_path: Path) -> None:
    """Canaries would have to wait far too long, behind calls that come one after the other."""
    canary = {"CANARY_SECONDS": "1", "MODELS": "scorer"}
    with (
        watched(tiny_llama, tmp_path / "log", MAX_BATCH_TOKENS="4000", **canary) as server,
        triton.InferenceServerClient(server.address) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        began = time.monotonic()
        while time.monotonic() - began < 12:
            assert all(len(scores) == 300 for scores in pool.map(score, [client] * 16, [300] * 16))
        assert server.restarts() == 0


@pytest.mark.exhaustive
def test_it_gives_up_after_so_many_restarts(tiny_llama: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launched(LAUNCHER, tiny_llama, log, MODELS="scorer", MAX_RESTARTS="1", HEALTH_PORT="0") as (
        process,
        _,
    ):
        name, pid = server_below(process.pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "ready again" in log.read_text(), lambda: log.read_text()[-4_000:])
        again, pid = server_below(process.pid)
        assert again == name
        os.kill(pid, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
        assert "Given up after 1 restarts in 600 seconds" in log.read_text()
        assert leftovers(name) == []


def started_again(launcher: int, old: int) -> bool:
    """Whether a launcher has another tritonserver than the old one."""
    try:
        return server_below(launcher)[1] != old
    except (AssertionError, psutil.NoSuchProcess):
        return False


@pytest.mark.exhaustive
def test_a_signal_during_a_restart_stops_everything(tiny_llama: Path, tmp_path: Path) -> None:
    with launched(LAUNCHER, tiny_llama, tmp_path / "log", MODELS="scorer") as (process, _):
        name, pid = server_below(process.pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: started_again(process.pid, pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert leftovers(name) == []
