"""Servers on addresses of IPv6: every port answers where the launcher says, and ``::`` takes IPv4 where it can."""

import re
import signal
import socket
import urllib.request
from pathlib import Path

import psutil
import pytest

from hiscore_client import ScoreClient
from tests.server.leftovers import leftovers, server_below
from tests.server.test_launcher_signals import LAUNCHER, launched
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

# Triton's own HTTP and metrics answer IPv6 alone.
DUAL = {"gRPC", "health", "API"}


def listening(pid: int) -> dict[int, str]:
    """Address by port of what a process and those below it listen on.

    Not asked of the port: another server may listen on the same one, at another address.
    """
    process = psutil.Process(pid)
    return {
        connection.laddr.port: connection.laddr.ip
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize("address", ["::1", "::"])
def test_every_port_answers(tiny_llama: Path, tmp_path: Path, address: str) -> None:
    settings = {"MODELS": "scorer", "BIND_ADDRESS": address, "ALLOW_KNOWN_CVES": "1", "HEALTH_PORT": "0"}
    with launched(LAUNCHER, tiny_llama, tmp_path / "log", CANARY_SECONDS="1", **settings) as (process, grpc):
        line = process.ready_line
        ports = {name: int(port) for name, port in re.findall(r"(\w+) (?:http://)?\[::1\]:(\d+)", line)}
        assert set(ports) == {"gRPC", "HTTP", "metrics", "health", "API"}, line
        with ScoreClient(grpc) as client:
            assert client.score_ids([5], [[7]], [9]).scores.shape == (1, 1)
        for path in re.findall(r"http://\S+(?<!,)", line):
            page = "" if path.count("/") > 2 else "/health" if str(ports["API"]) in path else "/v2"
            with urllib.request.urlopen(path + page, timeout=TIMEOUT_S) as response:
                assert response.status == 200
        addresses = listening(process.pid)
        assert {name: addresses[port] for name, port in ports.items()} == dict.fromkeys(ports, address)
        if address == "::":
            for name in DUAL:
                socket.create_connection(("127.0.0.1", ports[name]), TIMEOUT_S).close()
        name, _ = server_below(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert leftovers(name) == []
