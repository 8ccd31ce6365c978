"""Bodies: limits, compression, and what is said of one that is not a request."""

import asyncio
import gc
import gzip
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import zstandard
from starlette.datastructures import Headers

from hiscore.api.http.body import decode, decompress, read_body
from hiscore.api.http.errors import CLIENT_CLOSED, ApiError
from tests.support.timeouts import TIMEOUT_S

JSON = {"content-type": "application/json"}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}
MAX_BYTES = 1_000


def receiver(*chunks: bytes, then: str = "") -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
    """ASGI's receive; then: what comes after the chunks instead of the end, if anything."""
    left = [{"type": "http.request", "body": each, "more_body": True} for each in chunks]
    if not then:
        left[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop(0)
        if then == "nothing":
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    return receive


def read(*chunks: bytes, then: str = "", timeout_s: float = TIMEOUT_S, **headers: str) -> bytes:
    given = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(read_body(receiver(*chunks, then=then), Headers(given), MAX_BYTES, timeout_s))


def test_a_body_is_read_to_its_end() -> None:
    assert read(b"[1,", b"", b"2]") == b"[1,2]"
    assert read(b"x" * MAX_BYTES) == b"x" * MAX_BYTES
    # As some clients on Windows begin it, and Python's own parser reads it.
    assert read(b"\xef\xbb\xbf[1]") == b"[1]"
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/cloudevents+json"):
        assert read(b"1", content_type=kind) == b"1"


def test_the_old_name_of_gzip_is_known() -> None:
    assert read(gzip.compress(b"[1]"), content_encoding="X-Gzip") == b"[1]"


@pytest.mark.parametrize("encoding", COMPRESS)
def test_it_may_be_compressed(encoding: str) -> None:
    body = COMPRESS[encoding](b"[1, 2]")
    assert read(body[:7], body[7:], content_encoding=encoding.upper()) == b"[1, 2]"


@pytest.mark.parametrize(
    ("chunks", "headers", "status", "says"),
    [
        ([b"x" * 600, b"x" * 600], {}, 413, "larger than 1000 bytes"),
        ([b"x"], {"content_length": "1001"}, 413, "larger than 1000 bytes"),
        ([b"{}"], {"content_type": "text/plain"}, 415, "Content-Type is 'text/plain'"),
        ([b"{}"], {"content_type": ""}, 415, "send application/json"),
        ([b"{}"], {"content_type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ([b"{}"], {"content_encoding": "br"}, 415, "'br' is not known"),
        ([b"{}"], {"content_encoding": "gzip, gzip"}, 415, "is not known"),
        ([b"{}"], {"content_encoding": "gzip"}, 400, "is not gzip"),
        ([b"{}"], {"content_encoding": "zstd"}, 400, "is not zstd"),
    ],
)
def test_what_is_wrong_is_said(chunks: list[bytes], headers: dict[str, str], status: int, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        read(*chunks, **headers)
    assert caught.value.status == status


def test_a_slow_body_and_a_caller_that_leaves() -> None:
    with pytest.raises(ApiError, match=r"after 0\.05 seconds") as caught:
        read(b"{", then="nothing", timeout_s=0.05)
    assert caught.value.status == 408
    with pytest.raises(ApiError) as caught:
        read(b"{", then="disconnect")
    assert caught.value.status == CLIENT_CLOSED


@pytest.mark.slow
@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_bomb_is_not_unpacked(encoding: str) -> None:
    compress = COMPRESS[encoding]
    assert len(decompress(compress(b" " * MAX_BYTES), encoding, MAX_BYTES)) == MAX_BYTES
    for size in (MAX_BYTES + 1, 2**26):
        with pytest.raises(ApiError) as caught:
            decompress(compress(b" " * size), encoding, MAX_BYTES)
        assert caught.value.status == 413


def test_a_large_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    # Of unknown length, so that the window is not made smaller to fit.
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = compressor.compress(b"[1]") + compressor.flush()
    with pytest.raises(ApiError, match="not zstd") as caught:
        decompress(body, "zstd", MAX_BYTES)
    assert caught.value.status == 400


def test_a_compressed_body_ends_with_its_compression() -> None:
    body = gzip.compress(b"[1]")
    for wrong in (body[:-9], body + b"[2]", body + body):
        with pytest.raises(ApiError, match="do not end together") as caught:
            decompress(wrong, "gzip", MAX_BYTES)
        assert caught.value.status == 400
    frame = zstandard.compress(b"[1]")
    assert decompress(frame + zstandard.compress(b" "), "zstd", MAX_BYTES) == b"[1] "
    with pytest.raises(ApiError, match="not zstd"):
        decompress(frame + b"[2]", "zstd", MAX_BYTES)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    count: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parts: list[Inner] = []
    free: Any = None


@pytest.mark.parametrize(
    ("body", "says", "param"),
    [
        (b"{}", "name", None),
        (b'{"name": 1}', "'name': Expected `str`", "name"),
        (b'{"name": "a", "nam": 1}', "'nam' is not a field", "nam"),
        (b'{"name": "a", "parts": [{"count": "x"}]}', "Expected `int`", "parts[0].count"),
        (b'{"name": "a", "parts": [{"count": 1, "more": 2}]}', "'more' is not a field", "parts[0].more"),
        (b"[]", "the body: Expected `object`", None),
        (b"null", "the body: Expected `object`", None),
        (b"", "not valid JSON", None),
        (b"{", "truncated", None),
        (b'{"name": "a"}{}', "not valid JSON", None),
        (b"\xff", "not valid JSON", None),
        (b'{"name": "\xff"}', "UTF-8", None),
        (rb'{"name": "cut \ud83d", "free": 1}', "surrogate pair (byte 20)", None),
        (rb'{"name": "\ud800"}', "surrogate pair (byte 16)", None),
        (rb'{"name": "\udc00\ud800"}', "not valid JSON", None),
        (b'{"name": "a", "free": NaN}', "not valid JSON", None),
        (b'{"name": "a", "free": Infinity}', "not valid JSON", None),
        (b'{"name": "a", "free": 1e999}', "out of range", "free"),
        (b'{"name": "a", "free": ' + b"[" * 100_000, "JSON", None),
        (b'{"name": "a", "free": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "JSON", None),
        (b"[" * 100_000, "the body: Expected `object`", None),
    ],
)
def test_a_body_that_is_no_request_is_explained(body: bytes, says: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        decode(body, Outer)
    assert caught.value.status == 400
    assert says in caught.value.message
    assert caught.value.param == param


def test_control_a_request_is_decoded() -> None:
    body = {"name": "\ufeff\0 ü", "parts": [{"count": 2**60}], "free": {"a": [None]}}
    assert msgspec.to_builtins(decode(json.dumps(body).encode(), Outer)) == body


@pytest.mark.slow
def test_a_body_is_decoded_without_the_garbage_collector() -> None:
    body = b"[" + b",".join([b"[1]"] * 100_000) + b"]"
    collections = 0

    def count(phase: str, info: Any) -> None:
        nonlocal collections
        collections += phase == "start"

    gc.callbacks.append(count)
    try:
        decode(body, list[list[int]])
        assert collections <= 2, "one may follow as soon as it is on again"
        assert gc.isenabled()
        with pytest.raises(ApiError):
            decode(body, list[list[str]])
        assert gc.isenabled()
        gc.disable()
        decode(body, list[list[int]])
        assert not gc.isenabled()
        gc.enable()
        # The control; from 3.12 on, none runs inside a call to C.
        collections = 0
        msgspec.json.decode(body, type=list[list[int]])
        assert collections > 10 or sys.version_info >= (3, 12)
    finally:
        gc.enable()
        gc.callbacks.remove(count)
