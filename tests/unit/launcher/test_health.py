"""The launcher's own HTTP: what it answers, and that it can be stopped."""

import re
import socket
import urllib.error
import urllib.request
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

import hiscore
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.health import HealthServer, answer
from tests.support.timeouts import TIMEOUT_S

WELL: Any = SimpleNamespace(alive=True, unready="", restarts=3)
RESTARTING: Any = SimpleNamespace(alive=True, unready="the server is being restarted", restarts=4)
HANGING: Any = SimpleNamespace(alive=False, unready="", restarts=0)


@pytest.mark.parametrize(("watchdog", "restarts", "healthy"), [(WELL, 3, 1), (RESTARTING, 4, 0)])
def test_metrics(watchdog: Any, restarts: int, healthy: int) -> None:
    status, text = answer("/metrics", watchdog)
    assert status == 200
    assert f"\nhiscore_restarts_total {restarts}\n" in text
    assert f"\nhiscore_healthy {healthy}\n" in text


def test_metrics_tell_what_runs_and_what_memory_is_left() -> None:
    text = answer("/metrics", WELL)[1]
    (build,) = re.findall(r"^hiscore_build_info\{(.+)\} 1$", text, re.MULTILINE)
    assert f'version="{hiscore.__version__}"' in build
    assert f'torch="{metadata.version("torch")}"' in build
    assert re.search(r"^hiscore_shared_memory_free_bytes \d+$", text, re.MULTILINE)


def test_nothing_else_is_served() -> None:
    assert answer("/", WELL)[0] == 404


def test_over_http() -> None:
    server = HealthServer("127.0.0.1", 0, RESTARTING)
    try:
        url = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{url}/livez", timeout=TIMEOUT_S) as response:
            assert response.read() == b"ok\n"
        # Probes and proxies send these.
        with urllib.request.urlopen(f"{url}/livez?verbose=1&from=proxy", timeout=TIMEOUT_S) as response:
            assert response.read() == b"ok\n"
        head = urllib.request.Request(f"{url}/livez", method="HEAD")
        with urllib.request.urlopen(head, timeout=TIMEOUT_S) as response:
            assert (response.status, response.headers["Content-Length"], response.read()) == (200, "3", b"")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{url}/readyz", method="HEAD"), timeout=TIMEOUT_S)
        assert refused.value.code == 503
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/readyz", timeout=TIMEOUT_S)
        assert refused.value.code == 503
        assert refused.value.read() == b"the server is being restarted\n"
    finally:
        server.close()


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"HEALTH_PORT {port} cannot be used on 127.0.0.1"):
            HealthServer("127.0.0.1", port, WELL)
