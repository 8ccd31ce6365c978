"""The launcher with a real tritonserver: starting, failing, and leaving nothing behind."""

import shutil
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hiscore.launcher import LaunchError, Server
from hiscore.launcher import choice as launcher_choice
from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.ports import Ports
from tests.server.conftest import StartServer, settings_of
from tests.support.processes import alive
from tests.support.tiers import first_of
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.server


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.exhaustive
def test_a_free_port_that_gets_taken_is_chosen_anew(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, chosen = Ports.choose, []
    with socket.socket() as holder:

        def choose_and_lose_one(asked: Ports, address: str) -> Ports:
            ports = choose(asked, address)
            if not chosen:
                holder.bind((address, ports.grpc))
                holder.listen()
            chosen.append(ports)
            return ports

        monkeypatch.setattr(Ports, "choose", choose_and_lose_one)
        with Server(settings_of(tiny_llama, models="scorer"), tmp_path / "server.log") as server:
            assert server.ports == chosen[1] != chosen[0]


def test_a_model_that_does_not_load_gives_its_reason(tiny_llama: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken)
    weights = broken / "model.safetensors"
    # Of a header that is cut, too, the launcher would know before the start.
    weights.write_bytes(weights.read_bytes()[:-1000])
    before = children()
    log_path = tmp_path / "server.log"
    with pytest.raises(LaunchError, match=r"before it was ready: it ended with exit code 1") as raised:
        Server(settings_of(broken, models="scorer"), log_path).start()
    assert "cannot be read as safetensors" in str(raised.value)
    assert str(log_path) in str(raised.value)
    assert children() <= before


@pytest.mark.parametrize("crashes", first_of(2, 3))
def test_crashes_of_triton_itself_at_the_start_get_further_tries(
    crashes: int, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's own error exits with 1 and gets none: that is the test above."""
    wheel = find_distribution()
    tries = tmp_path / "tries"
    wrapper = tmp_path / "tritonserver"
    # The check of linked libraries does not count as a try.
    wrapper.write_text(
        f'#!/bin/sh\n[ "$LD_TRACE_LOADED_OBJECTS" ] || echo >>{tries}\n'
        f'[ "$LD_TRACE_LOADED_OBJECTS" ] || [ $(wc -l <{tries}) -gt {crashes} ] || kill -ABRT $$\n'
        f'exec {wheel.tritonserver} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setattr(launcher_choice, "find_distribution", lambda: replace(wheel, tritonserver=wrapper))
    server = Server(settings_of(tiny_llama, models="scorer"), tmp_path / "server.log")
    if crashes == 2:
        with server:
            assert not server.fault()
    else:
        with pytest.raises(
            LaunchError, match=r"stopped before it was ready: it was killed by signal 6 \(SIGABRT\)"
        ):
            server.start()
    assert len(tries.read_text().splitlines()) == 3


def test_a_model_that_dies_right_after_the_start_is_missed(tiny_llama: Path, tmp_path: Path) -> None:
    with Server(settings_of(tiny_llama, models="scorer"), tmp_path / "server.log") as server:
        (stub,) = (child for child in psutil.Process(server.pid).children() if "stub" in child.name())
        stub.kill()
        wait_until(lambda: not alive([stub]))
        assert "the process of model scorer" in server.fault()


@pytest.mark.parametrize(
    "path", ["systemsharedmemory/status", "repository/index", "trace/setting", "logging"]
)
def test_the_inside_is_closed_to_callers(tiny_llama: Path, start_server: StartServer, path: str) -> None:
    server = start_server(tiny_llama, queue_timeout_s=599)
    method = "POST" if path == "repository/index" else "GET"
    request = urllib.request.Request(f"{server.http_url}/v2/{path}", method=method)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request)
    assert raised.value.code == 403
