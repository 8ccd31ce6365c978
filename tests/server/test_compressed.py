"""Compressed calls that grow a thousandfold: the server's memory stays bounded, and the next caller is served."""

import gzip
import http.client
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.server.leftovers import server_below
from tests.server.test_watchdog import Watched, watched, works
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

MIB = 2**20
ALLOWED = 256 * MIB
UNPACKED = 512 * MIB
LAUNCHER_ALLOWING_LESS = [
    sys.executable,
    "-c",
    f"from hiscore.launcher import __main__, process; process.MOST_ALLOWED = {ALLOWED}; exit(__main__.main())",
]
TENSORS = (("query", "BYTES", "q"), ("items", "BYTES", "a"), ("label_token_ids", "INT32", 1))
CALL = {
    "inputs": [
        {"name": name, "shape": [1, 1], "datatype": datatype, "data": [value]}
        for name, datatype, value in TENSORS
    ]
}


def packed(size: int) -> bytes:
    """Spaces, which JSON may have anywhere, as gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(b" " * MIB) for _ in range(size // MIB)), packer.flush()])


def post(server: Watched, body: bytes) -> tuple[int, str]:
    """Status and text; status 0 if the connection broke."""
    found = re.search(r"HTTP http://(\S+?),", server.process.ready_line)
    assert found
    connection = http.client.HTTPConnection(found.group(1), timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v2/models/score/infer", body, {"Content-Encoding": "gzip"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)
    finally:
        connection.close()


def most_memory(server: Watched) -> int:
    """The most that the running tritonserver has ever had, in bytes."""
    _, pid = server_below(server.process.pid)
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def is_up(server: Watched) -> bool:
    """Whether it serves: the launcher may say so for a moment after tritonserver has died."""
    try:
        server_below(server.process.pid)
    except AssertionError:
        return False
    return server.get("/readyz")[0] == 200


def grpc_call(server: Watched, query: bytes) -> None:
    tensors = [
        ("query", np.array([[query]], np.object_), "BYTES"),
        ("items", np.array([[b"a"]], np.object_), "BYTES"),
        ("label_token_ids", np.array([[1]], np.int32), "INT32"),
    ]
    inputs = []
    for name, values, datatype in tensors:
        inputs.append(triton.InferInput(name, list(values.shape), datatype))
        inputs[-1].set_data_from_numpy(values)
    with triton.InferenceServerClient(server.address) as client:
        client.infer("score", inputs, compression_algorithm="gzip", client_timeout=TIMEOUT_S)


def test_what_a_compressed_call_takes_is_bounded(tiny_lm: Path, tmp_path: Path) -> None:
    body = packed(UNPACKED)
    assert UNPACKED / len(body) > 1_000
    with watched(tiny_lm, tmp_path / "log", LAUNCHER_ALLOWING_LESS, CANARY_SECONDS="0") as server:
        at_rest = most_memory(server)
        # The control: compression as such is served.
        status, answer = post(server, gzip.compress(json.dumps(CALL).encode()))
        assert (status, "scores" in answer) == (200, True)
        grpc_call(server, b"q")
        for send in (lambda: post(server, body), lambda: refused_over_grpc(server)):
            status, answer = send()
            assert status != 200, answer
            server.wait(lambda: is_up(server))
            assert most_memory(server) < at_rest + ALLOWED + 16 * MIB
            assert works(server.address)


def refused_over_grpc(server: Watched) -> tuple[int, str]:
    with pytest.raises(InferenceServerException) as raised:
        grpc_call(server, b" " * UNPACKED)
    return 0, str(raised.value)
