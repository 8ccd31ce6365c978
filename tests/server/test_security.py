"""Who is let in: TLS and certificates on gRPC, and interfaces that stay locked even with the key."""

import http.client
import json
import re
import socket
import ssl
import tempfile
import urllib.request
from pathlib import Path

import grpc
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server, command
from hiscore.launcher.api import Api
from hiscore_client import HiscoreError, ScoreClient
from hiscore_client.retry import RetryPolicy
from tests.client.cli.command import run
from tests.server.api import api_of
from tests.server.conftest import StartServer, settings_of
from tests.support.certificates import Certificate, make_ca, sign
from tests.support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.server

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    directory = tmp_path_factory.mktemp("pki")
    ca, stranger = make_ca(directory, "ca"), make_ca(directory, "stranger")
    return {
        "ca": ca,
        "stranger": stranger,
        "server": sign(ca, directory, "server"),
        "caller": sign(ca, directory, "caller"),
        "intruder": sign(stranger, directory, "intruder"),
    }


@pytest.fixture(scope="module")
def secured(start_server: StartServer, tiny_llama: Path, pki: dict[str, Certificate]) -> Server:
    server = pki["server"]
    return start_server(
        tiny_llama,
        models="scorer",
        bind_address="0.0.0.0",
        allow_known_cves=True,
        tls_cert=server.cert,
        tls_key=server.key,
        tls_client_ca=pki["ca"].cert,
    )


def scores(server: Server, credentials: grpc.ChannelCredentials | None) -> int:
    with ScoreClient(server.grpc_url, credentials=credentials, retry=ONCE) as client:
        return len(client.score_ids([5, 6], [[7], [8]], [9], timeout=TIMEOUT_S).scores)


def credentials(root: Certificate, own: Certificate | None) -> grpc.ChannelCredentials:
    pair = (own.key.read_bytes(), own.cert.read_bytes()) if own else (None, None)
    return grpc.ssl_channel_credentials(root.cert.read_bytes(), *pair)


def test_a_caller_with_a_certificate_is_served(secured: Server, pki: dict[str, Certificate]) -> None:
    assert scores(secured, credentials(pki["ca"], pki["caller"])) == 2


@pytest.mark.parametrize("caller", ["plaintext", "no certificate", "another's certificate", "wrong server"])
def test_others_are_not(secured: Server, pki: dict[str, Certificate], caller: str) -> None:
    offered = {
        "plaintext": None,
        "no certificate": credentials(pki["ca"], None),
        "another's certificate": credentials(pki["ca"], pki["intruder"]),
        "wrong server": credentials(pki["stranger"], pki["caller"]),
    }[caller]
    with pytest.raises(HiscoreError):
        scores(secured, offered)


def test_http_keeps_to_loopback_where_grpc_has_tls(secured: Server) -> None:
    """Triton's HTTP has no TLS; metrics and gRPC are the control."""
    listening = {
        connection.laddr.port: connection.laddr.ip
        for connection in psutil.Process(secured.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    ports = secured.ports
    assert listening[ports.http] == "127.0.0.1"
    assert listening[ports.metrics] == "0.0.0.0"
    assert listening[ports.grpc] in ("0.0.0.0", "::")


@pytest.fixture
def lock(lm: Server) -> tuple[Server, str, str]:
    """A server, and the name and value that its command line shows for its locked interfaces."""
    line = next(each for each in psutil.Process(lm.pid).cmdline() if "--http-restricted-api" in each)
    found = re.fullmatch(r"--http-restricted-api=[\w,-]+:(\w+)=(\w{32}\n)", line)
    assert found, line
    return lm, found.group(1), found.group(2)


def http_status(server: Server, header: str) -> str:
    """The answer of the locked shared-memory interface to a raw header; empty: no answer."""
    with socket.create_connection(("127.0.0.1", server.ports.http), timeout=TIMEOUT_S) as connection:
        request = f"GET /v2/systemsharedmemory/status HTTP/1.1\r\nHost: a\r\n{header}\r\n"
        connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
        found = re.match(r"HTTP/1.1 (\d+) ", connection.recv(4_096).decode())
    return found.group(1) if found else ""


@pytest.mark.parametrize("ending", ["\n", "", "\\n", "%0A", "\n\t", "\r"])
def test_the_key_on_the_command_line_opens_nothing_over_http(
    lock: tuple[Server, str, str], ending: str
) -> None:
    server, name, value = lock
    assert http_status(server, f"{name}: {value.strip()}{ending}") in ("", "400", "403")


def test_control_a_key_that_can_be_sent_would_open_it(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "UNSENDABLE", "")
    monkeypatch.setattr(command.secrets, "token_hex", lambda size: "a" * 2 * size)
    with Server(settings_of(tiny_llama, models="scorer"), tmp_path / "log") as server:
        assert http_status(server, f"hiscore: {'a' * 32}") == "200"


def test_nor_over_grpc(lock: tuple[Server, str, str]) -> None:
    server, name, value = lock
    with triton.InferenceServerClient(server.grpc_url) as client:
        for sent in (value, value.strip()):
            headers = {f"triton-grpc-protocol-{name}": sent}
            with pytest.raises((InferenceServerException, ValueError)):
                client.get_system_shared_memory_status(headers=headers)
        # The control: what is not locked does answer.
        assert client.is_server_live()


@pytest.mark.parametrize("path", ["v2", "v2/models/{}", "v2/models/{}/config", "v2/models/{}/stats"])
def test_what_callers_may_read_names_no_path_of_this_machine(lm: Server, tiny_lm: Path, path: str) -> None:
    for model in lm.models:
        with urllib.request.urlopen(f"{lm.http_url}/{path.format(model)}") as response:
            text = response.read().decode()
        assert "name" in text  # the control: it was answered
        assert str(tiny_lm) not in text
        assert "checkpoint" not in text
        assert tempfile.gettempdir() not in text


def test_the_command_line_uses_tls(secured: Server, pki: dict[str, Certificate]) -> None:
    """By flags and by variables; without the caller's certificate it is not let in."""
    ca, caller = pki["ca"].cert, pki["caller"]
    flags = ["--tls-ca", str(ca), "--tls-cert", str(caller.cert), "--tls-key", str(caller.key)]
    wait = ["wait-ready", "--model", "scorer", "--timeout", "5"]
    assert run(*flags, *wait, url=secured.grpc_url).returncode == 0
    assert run(*flags[:2], *wait, url=secured.grpc_url).returncode == 3
    # Where the container's canary finds it: the server's own certificate.
    own = ["--tls-ca", str(pki["server"].cert), *flags[2:]]
    assert run(*own, *wait, url=secured.grpc_url).returncode == 0
    named = f"localhost:{secured.ports.grpc}"  # the certificate is for 127.0.0.1
    assert run(*flags, *wait, url=named).returncode == 3
    assert run(*flags, "--tls-name", "127.0.0.1", *wait, url=named).returncode == 0


def ask_api(api: Api, context: ssl.SSLContext) -> int:
    """Scores that an HTTPS call of the API gets."""
    body = json.dumps({"query": [5, 6], "items": [[7], [8]], "label_token_ids": [9]}).encode()
    request = urllib.request.Request(f"{api.url}/v1/score", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        return len(json.load(answer)["scores"])


def test_the_http_api_has_tls_and_calls_the_models_over_it(
    secured: Server, pki: dict[str, Certificate], tmp_path: Path
) -> None:
    server, caller = pki["server"], pki["caller"]
    files = {"tls_cert": server.cert, "tls_key": server.key, "tls_client_ca": pki["ca"].cert}
    known, unknown = (ssl.create_default_context(cafile=pki["ca"].cert) for _ in range(2))
    known.load_cert_chain(caller.cert, caller.key)
    with api_of(secured, tmp_path / "api.log", **files) as api:
        assert api.url.startswith("https://")
        assert ask_api(api, known) == 2
        # The connection is closed, with or without a word.
        with pytest.raises((OSError, http.client.HTTPException)):
            ask_api(api, unknown)
        stranger = ssl.create_default_context(cafile=pki["stranger"].cert)
        with pytest.raises(OSError, match=r"(?i)certificate"):
            ask_api(api, stranger)
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(api.url.replace("https", "http") + "/health", timeout=TIMEOUT_S)
