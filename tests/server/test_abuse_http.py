"""Broken and hostile bytes at the HTTP port: each gets an error or a closed connection, and harms no other call.

What is known to end tritonserver 2.51 itself is not here but in `test_abuse_fatal`.
"""

import gzip
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.launcher import Server
from tests.server.beside import Beside, good_calls_beside
from tests.server.generation import over_http
from tests.server.raw_http import chunked, exchange, infer, leak, post, tensor

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

SCORER, SCORE = "/v2/models/scorer/infer", "/v2/models/score/infer"
GENERATE, DECODE = "/v2/models/score/generate", "/v2/models/decode/generate_stream"
IDS = tensor("input_ids", [1, 5], "INT32", [11, 12, 0, 13, 0])
OTHERS = [
    tensor("delimiter_indices", [1, 2], "INT32", [2, 4]),
    tensor("label_token_ids", [1, 2], "INT32", [5, 6]),
]
GOOD = infer([IDS, *OTHERS])
RAW_IDS = struct.pack("<5i", 11, 12, 0, 13, 0)
DEEP = 100_000


def ids(shape: Any, datatype: Any = "INT32", data: Any = None, **parameters: Any) -> bytes:
    return post(SCORER, infer([tensor("input_ids", shape, datatype, data, **parameters), *OTHERS]))


def binary(size: Any, tail: bytes = RAW_IDS, header: Any = None, shape: Any = (1, 5)) -> bytes:
    """The ids behind the JSON; size: what that says of them; header: what a header says of its length."""
    body = infer([tensor("input_ids", list(shape), "INT32", binary_data_size=size), *OTHERS])
    said = f"Inference-Header-Content-Length: {len(body) if header is None else header}"
    return post(SCORER, body + tail, said)


def texts(tail: bytes, size: int | None = None, shape: Any = (1, 1)) -> bytes:
    """The query behind the JSON, as length and bytes."""
    query = tensor("query", list(shape), "BYTES", binary_data_size=len(tail) if size is None else size)
    others = [tensor("items", [1, 1], "BYTES", ["a"]), tensor("label_token_ids", [1, 1], "INT32", [5])]
    body = infer([query, *others])
    return post(SCORE, body + tail, f"Inference-Header-Content-Length: {len(body)}")


CLOSED, ANSWERED, ERROR = "^$", "^HTTP/1.1 200 ", r"^HTTP/1.1 (400|404|405|500|501) .*\"error\":"
CUT = r"^HTTP/1.1 \d+ [\w ]*$"

# What is sent, and what comes back.
PROTOCOL: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", CLOSED),
    "zeros": (b"\0" * 100, CLOSED),
    "no HTTP": (b"\xff\xfe\x00garbage\r\n\r\n", CLOSED),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 500, CLOSED),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CLOSED),
    "an unknown method": (b"FOO /v2 HTTP/1.1\r\nConnection: close\r\n\r\n", "405"),
    "a method that does not fit": (b"DELETE /v2/models/score HTTP/1.1\r\nConnection: close\r\n\r\n", "405"),
    "a long path": (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", CLOSED),
    "a long header": (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", CLOSED),
    "a path upwards": (post("/v2/models/..%2f..%2fetc/infer", b"{}"), "404 .*unknown model"),
    "a broken escape": (post("/v2/models/%/infer", b"{}"), "404 .*unknown model"),
    "a zero in the path": (post("/v2/models/sc\0re/infer", b"{}"), "405"),
    "a huge version": (post(f"/v2/models/scorer/versions/{10**30}/infer", GOOD), "400 .*version"),
    "a length below zero": (post(SCORER, GOOD, length=-1), CLOSED),
    "a length in words": (post(SCORER, GOOD, length="many"), CLOSED),
    "a length beyond 64 bits": (post(SCORER, GOOD, length=2**70), CLOSED),
    "a huge length": (post(SCORER, GOOD, length=2**62), CLOSED),
    "a length too long": (post(SCORER, GOOD, length=len(GOOD) + 1), CLOSED),
    "a length too short": (post(SCORER, GOOD, length=len(GOOD) - 1), "500 .*failed to parse"),
    "two lengths": (post(SCORER, GOOD, "Content-Length: 5"), ERROR),
    "no length": (f"POST {SCORER} HTTP/1.1\r\nConnection: close\r\n\r\n".encode() + GOOD, ERROR),
    "a chunk of no size": (chunked(SCORER, b"zz\r\n" + GOOD), CLOSED),
    "a chunk below zero": (chunked(SCORER, b"-5\r\n" + GOOD), CLOSED),
    "a huge chunk": (chunked(SCORER, b"f" * 16 + b"\r\n" + GOOD), CLOSED),
    "no last chunk": (chunked(SCORER, f"{len(GOOD):x}\r\n".encode() + GOOD + b"\r\n"), CLOSED),
    "gzip that is none": (post(SCORER, GOOD, "Content-Encoding: gzip"), ERROR),
    "an unknown encoding": (post(SCORER, GOOD, "Content-Encoding: br"), "501 .*Unsupported"),
    "64 MiB of spaces in gzip": (
        post(SCORER, gzip.compress(b" " * 2**26), "Content-Encoding: gzip"),
        "500 .*failed to parse",
    ),
}
JSON: dict[str, tuple[bytes, str]] = {
    "an empty body": (post(SCORER, b""), ERROR),
    "zeros": (post(SCORER, b"\0" * 50), ERROR),
    "an open brace": (post(SCORER, b"{"), ERROR),
    "a list": (post(SCORER, b"[]"), ERROR),
    "null": (post(SCORER, b"null"), ERROR),
    "bytes that are no text": (post(SCORER, b'{"inputs":"\xff\xfe"}'), ERROR),
    "deep lists": (post(SCORER, b"[" * DEEP), ERROR),
    "deep objects": (post(SCORER, b'{"a":' * DEEP), ERROR),
    "deep data": (post(SCORER, GOOD.replace(b"[11,", b"[" * DEEP + b"]" * DEEP + b",")), ERROR),
    "deep text": (post(GENERATE, b'{"query":' + b"[" * DEEP + b"]" * DEEP + b"}"), ERROR),
    "a deep prompt": (post(DECODE, b'{"input_ids":' + b"[" * DEEP + b"]" * DEEP + b"}"), ERROR),
    "no inputs": (post(SCORER, infer([])), ERROR),
    "inputs of numbers": (post(SCORER, infer([1])), ERROR),
    "inputs that are no list": (post(SCORER, b'{"inputs":{}}'), ERROR),
    "an input twice": (post(SCORER, infer([IDS, IDS, *OTHERS])), "400 .*already exists"),
    "outputs that are no list": (post(SCORER, infer([IDS, *OTHERS], outputs=5)), ERROR),
    "an unknown output": (post(SCORER, infer([IDS, *OTHERS], outputs=[{"name": "x"}])), "400 .*'x'"),
    "parameters that are a list": (post(SCORER, infer([IDS, *OTHERS], parameters=[1])), ERROR),
    "a parameter of objects": (post(SCORER, infer([IDS, *OTHERS], parameters={"temperature": {}})), ERROR),
    "a number beyond a double": (post(SCORER, GOOD[:-1] + b',"parameters":{"temperature":1e999}}'), ERROR),
    "a timeout below zero": (post(SCORER, infer([IDS, *OTHERS], parameters={"timeout": -1})), ERROR),
    "a priority in words": (post(SCORER, infer([IDS, *OTHERS], parameters={"priority": "high"})), ERROR),
    "an id of numbers": (post(SCORER, infer([IDS, *OTHERS], id=5)), ERROR),
    "a shape below zero": (ids([1, -1], data=[1]), ERROR),
    "a shape beyond 64 bits": (ids([1, 2**70], data=[1]), ERROR),
    "a shape of fractions": (ids([1, 5.5], data=[1]), ERROR),
    "no shape": (ids([], data=[1]), ERROR),
    "ten thousand dimensions": (ids([1] * 10_000, data=[1]), ERROR),
    "no rows": (ids([0, 5], data=[]), ERROR),
    "an unknown type": (ids([1, 5], "INT33", [1] * 5), "400 .*datatype"),
    "a type of numbers": (ids([1, 5], 5, [1] * 5), ERROR),
    "too few data": (ids([1, 5], data=[1] * 4), ERROR),
    "too many data": (ids([1, 5], data=[1] * 400), ERROR),
    "data of text": (ids([1, 5], data=["a"] * 5), ERROR),
    "data of fractions": (ids([1, 5], data=[1.5] * 5), ERROR),
    "data beyond 64 bits": (ids([1, 5], data=[2**70] * 5), ERROR),
    "data beyond 32 bits": (ids([1, 5], data=[2**31] * 5), "400 .*holds -2147483648"),
    "not a number": (ids([1, 5], data=[float("nan")] * 5), ERROR),
    "shared memory": (ids([1, 5], shared_memory_region="x", shared_memory_byte_size=20), ERROR),
    "a prompt beyond 64 bits": (post(DECODE, b'{"input_ids":[99999999999999999999]}'), ERROR),
    "a prompt of text": (post(DECODE, b'{"input_ids":"abc"}'), ERROR),
    "no prompt": (post(DECODE, b"{}"), "400 .*exactly one of 'input_ids' and 'text_input'"),
    "tokens beyond 64 bits": (post(DECODE, b'{"input_ids":[1],"max_tokens":9e22}'), "400 .*'max_tokens'"),
    "deep stops": (post(DECODE, json.dumps({"input_ids": [1], "stop": "[" * DEEP}).encode()), "400 .*'stop'"),
}
BINARY: dict[str, tuple[bytes, str]] = {
    "a size too long": (binary(200), "400 .*expecting 180 additional bytes"),
    "a size too short": (binary(4), "400 .*unexpected additional input data"),
    "a size below zero": (binary(-1), ERROR),
    "a huge size": (binary(2**63 - 1), "400 .*unexpected size"),
    "a size beyond 64 bits": (binary(2**64), ERROR),
    "a size in words": (binary("20"), ERROR),
    "a size that is no multiple": (binary(19, RAW_IDS[:19]), "400 .*Expected 20, got 19"),
    "no data": (binary(20, b""), "400 .*expecting 20 additional bytes"),
    "a shape that is larger": (binary(20, shape=(1, 6)), "400 .*Expected 24, got 20"),
    "a shape that overflows": (binary(20, shape=(1, 2**62)), "400 .*byte size mismatch"),
    "a header too long": (binary(20, header=10**6), "400 .*header size"),
    "a header below zero": (binary(20, header=-1), "400 .*header size"),
    "a huge header": (binary(20, header=2**64 + 5), "400 .*header size"),
    "a header too short": (binary(20, header=5), ERROR),
    "a header in words": (binary(20, header="x"), ERROR),
    "a text longer than all": (texts(struct.pack("<I", 2**32 - 1) + b"q"), "400 .*4294967295"),
    "a text too long": (texts(struct.pack("<I", 2) + b"q"), "400 .*expecting string of length 2"),
    "a text too short": (texts(struct.pack("<I", 0) + b"q"), "400 .*incomplete string"),
    "half a length": (texts(b"abc"), "400 .*incomplete string length"),
    "no text": (texts(b""), "400 .*expected 1 string"),
    "two texts for one": (texts((struct.pack("<I", 1) + b"q") * 2), "400 .*string elements 2"),
    "one text for two": (texts(struct.pack("<I", 1) + b"q", shape=(1, 2)), ERROR),
}
GOOD_ONES: dict[str, bytes] = {
    "JSON": post(SCORER, GOOD),
    "chunks": chunked(SCORER, f"{len(GOOD):x}\r\n".encode() + GOOD + b"\r\n0\r\n\r\n"),
    "gzip": post(SCORER, gzip.compress(GOOD), "Content-Encoding: gzip"),
    "binary": binary(20),
    "text": texts(struct.pack("<I", 1) + b"q"),
    "generate": post(GENERATE, b'{"query":"q","items":["a"],"label_token_ids":[5]}'),
    "stream": post(DECODE, b'{"input_ids":[1],"max_tokens":2}'),
}


CASES = {**PROTOCOL, **JSON, **BINARY}


@pytest.fixture(scope="module", autouse=True)
def beside(abused: Server, tiny_lm: Path) -> Iterator[Beside]:
    """Good calls all the while, and a stream at the end."""
    with good_calls_beside(abused, tiny_lm) as beside:
        yield beside
    assert len(over_http(abused, {"input_ids": [11, 12]}, max_tokens=5, ignore_eos=True).ids) == 5


def check(answer: str, pattern: str) -> None:
    assert re.search(pattern, answer, re.DOTALL), answer[:500]
    assert not leak(answer), answer[:500]


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str, abused: Server) -> None:
    request, pattern = CASES[name]
    check(exchange(abused.http_address, request, ends=pattern == CLOSED), pattern)


@pytest.mark.parametrize("name", GOOD_ONES)
def test_control_what_is_right_is_answered(name: str, abused: Server) -> None:
    check(exchange(abused.http_address, GOOD_ONES[name]), ANSWERED)


@settings(max_examples=200, derandomize=True, database=None)
@given(name=st.sampled_from(sorted(GOOD_ONES.keys() - {"stream"})), data=st.data())
def test_a_request_with_wrong_bytes_gets_an_answer_an_error_or_the_end(
    name: str, data: st.DataObject, abused: Server
) -> None:
    request = bytearray(GOOD_ONES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(request) - 1))
        request[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    # Not every such request is whole, so each has to end, and its answer may be cut short for that.
    check(exchange(abused.http_address, bytes(request), ends=True), f"{CLOSED}|{CUT}|{ANSWERED}|{ERROR}")


def test_good_calls_were_answered_beside_all_that(beside: Beside) -> None:
    """So far; the fixture looks once more at the end."""
    beside.check()
    assert beside.calls > 0
