"""The image's canary, a shell script, against real servers: what it calls alive and what it does not."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hiscore.launcher import Server
from tests.server.conftest import StartServer, settings_of
from tests.support.deployment import DOCKER
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

SCORING = "score, tokenizer, scorer"
ALL = {"models": "score,tokenizer,scorer,decode", "query_cache_bytes": 2**24, "max_streams": 2}


def canary(url: str, models: str, seconds: int = TIMEOUT_S) -> int:
    """Its exit code, run as in the image: with the commands of the environment first on PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HISCORE_URL": url, "MODELS": models}
    return subprocess.run(
        [DOCKER / "canary", str(seconds)], env=environment, timeout=2 * TIMEOUT_S, check=False
    ).returncode


def stub_of(server: Server, model: str) -> psutil.Process:
    """The process in which a model runs."""
    (stub,) = (
        child
        for child in psutil.Process(server.pid).children()
        if any(f"/{model}/" in part for part in child.cmdline())
    )
    return stub


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("models", [SCORING, "scorer", "decode"])
def test_a_server_that_answers_lives(lm: Server, models: str) -> None:
    assert canary(lm.grpc_url, models) == 0


@pytest.mark.parametrize("models", [SCORING, "decode"])
def test_a_server_that_refuses_lives(start_server: StartServer, tiny_lm: Path, models: str) -> None:
    narrow = start_server(tiny_lm, max_context=2, **ALL)
    assert canary(narrow.grpc_url, models) == 0


@pytest.mark.parametrize("models", [SCORING, "scorer", "decode"])
def test_nobody_there_is_dead(nobody: str, models: str) -> None:
    # Waiting for `scorer` takes the whole time; the others need enough of it to see that nobody listens.
    assert canary(nobody, models, seconds=2 if models == "scorer" else TIMEOUT_S) == 1


def test_a_model_that_hangs_is_dead_whatever_readiness_says(tiny_lm: Path, tmp_path: Path) -> None:
    with Server(settings_of(tiny_lm, **ALL), tmp_path / "log") as server:
        frozen: list[psutil.Process] = []
        assert canary(server.grpc_url, SCORING) == canary(server.grpc_url, "decode") == 0
        assert not server.fault()
        try:
            for model, models, others in (("scorer", SCORING, "decode"), ("decode", "decode", None)):
                frozen.append(stub_of(server, model))
                frozen[-1].send_signal(signal.SIGSTOP)
                # The control: what a probe of readiness says.
                with urllib.request.urlopen(
                    f"{server.http_url}/v2/health/ready", timeout=TIMEOUT_S
                ) as response:
                    assert response.status == 200
                assert canary(server.grpc_url, models, seconds=3) == 1
                # The other models still live.
                assert others is None or canary(server.grpc_url, others) == 0
        finally:
            for stub in frozen:
                stub.kill()
