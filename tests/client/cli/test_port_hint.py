"""A wrong port: what the command suggests, and that it suggests nothing without a reason."""

import socket
from collections.abc import Iterator

import pytest

from hiscore_client.cli import exits as module
from hiscore_client.cli.exits import port_hint
from tests.client.cli.command import run
from tests.support.http_server import answering


@pytest.fixture
def http_port() -> Iterator[int]:
    with answering(lambda asked: (200, "")) as address:
        yield int(address.partition(":")[2])


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield int(holder.getsockname()[1])


def test_http_is_not_grpc(http_port: int, silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEFAULT_PORT", silent_port)
    assert port_hint(f"127.0.0.1:{http_port}") == (
        f"port {http_port} speaks HTTP: give the gRPC port, probably 127.0.0.1:{silent_port}"
    )


def test_the_default_port_is_suggested_if_something_is_there(
    silent_port: int, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert port_hint(dead_url.replace("127.0.0.1", "127.0.0.9")) == ""
    monkeypatch.setattr(module, "DEFAULT_PORT", silent_port)
    assert port_hint(dead_url).startswith(f"something listens on 127.0.0.1:{silent_port}")


@pytest.mark.parametrize("url", ["", "localhost", "dns:///service", "dns:///service:8001"])
def test_what_is_no_host_and_port_gets_no_hint(url: str) -> None:
    assert port_hint(url) == ""


def test_the_command_says_it(http_port: int) -> None:
    url = f"127.0.0.1:{http_port}"
    done = run("wait-ready", "--timeout", "0.5", url=url)
    assert done.returncode == 3
    assert f"hiscore: port {http_port} speaks HTTP: give the gRPC port" in done.stderr.decode()
