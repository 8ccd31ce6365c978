"""A request's body: read within limits, decompressed, and turned into a typed request."""

import asyncio
import codecs
import gc
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
import zstandard
from starlette.types import Receive

from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import CLIENT_CLOSED, ApiError, bad_request
from hiscore.api.http.interruption import Interrupted, Interruptible

T = TypeVar("T")
MAX_VALUES = 2**19
"""Texts, keys, lists and objects of one body. Numbers take no memory to speak of; a route bounds them itself."""
# Bytes looked at together; what they are compared to is several times as large.
PIECE_BYTES = 2**20
QUOTE, LIST, OBJECT = b'"[{'
# Windows of zstd may have gigabytes; this is the most that a decoder must support (RFC 8878).
MAX_WINDOW_BYTES = 2**23
GZIP_WINDOW_BITS = 31


async def read_body(receive: Receive, headers: Mapping[str, str], max_bytes: int, timeout_s: float) -> bytes:
    """Read and decompress a body of at most `max_bytes` that is complete within `timeout_s`."""
    _check_type(headers.get("content-type", ""))
    encoding = headers.get("content-encoding", "").strip().lower()
    encoding = "gzip" if encoding == "x-gzip" else encoding  # RFC 9110 8.4.1.3
    if encoding not in ("", "identity", "gzip", "zstd"):
        raise ApiError(415, f"Content-Encoding '{encoding[:40]}' is not known: use gzip or zstd")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        with Interruptible() as reading:
            timer = asyncio.get_running_loop().call_later(timeout_s, reading.interrupt)
            try:
                body = await _receive_all(receive, max_bytes)
            finally:
                timer.cancel()
    except Interrupted:
        raise ApiError(408, f"the body was not complete after {timeout_s:g} seconds") from None
    if encoding in ("gzip", "zstd"):
        body = decompress(body, encoding, max_bytes)
    body = body.removeprefix(codecs.BOM_UTF8)
    # Of its values each has two bytes at least.
    if len(body) >= 2 * MAX_VALUES and _at_most(body) > MAX_VALUES:
        await off_loop(partial(check_values, body), len(body))
    return body


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a body, or raise `ApiError` without ever holding much more than `max_bytes`."""
    try:
        if encoding == "gzip":
            inflate = zlib.decompressobj(GZIP_WINDOW_BITS)
            plain, ends = inflate.decompress(body, max_bytes + 1), inflate.eof and not inflate.unused_data
        else:
            reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
                io.BytesIO(body), read_across_frames=True
            )
            plain, ends = reader.read(max_bytes + 1), True
    except (zlib.error, zstandard.ZstdError):
        raise bad_request(f"the body is not {encoding}, as its Content-Encoding says") from None
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    if not ends:
        raise bad_request(f"the body and its {encoding} do not end together")
    return plain


def decode(body: bytes, request_type: type[T]) -> T:
    """Read a JSON body as a typed request.

    An unknown field may be null: OpenAI's client writes out what its caller has set to None.
    """
    collects = gc.isenabled()
    # What is read has no cycles, and of many lists most of the time would be the collector's.
    gc.disable()
    try:
        try:
            return msgspec.json.decode(body, type=request_type)
        except msgspec.ValidationError as error:
            if "unknown field" not in str(error):
                raise
        # White space around a value would hide its kind.
        body = bytes(msgspec.json.decode(body, type=msgspec.Raw))
        return msgspec.json.decode(
            msgspec.json.encode(_without_nulls(body, _plain(request_type))), type=request_type
        )
    except msgspec.ValidationError as error:
        raise _not_such_a_request(str(error)) from None
    except msgspec.DecodeError as error:
        # Half of a surrogate pair is told from an end that is missing only where the other half would fit.
        if "truncated" in str(error) and not body.endswith(b" " * 6):
            return decode(body + b" " * 6, request_type)
        why = str(error).removeprefix("JSON is malformed: ")
        raise bad_request(f"the body is not valid JSON: {why}", code="invalid_json") from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid JSON: it is not UTF-8", code="invalid_json") from None
    except RecursionError:
        raise bad_request("the body's JSON is nested too deeply", code="invalid_json") from None
    finally:
        if collects:
            gc.enable()


def check_unique_keys(body: bytes) -> None:
    """Refuse valid JSON in which an object holds a key twice: all but the last would be lost."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise bad_request(f"the key {key[:100]!r} is there twice in one object")
            seen.add(key)

    try:
        # Numbers are left as they are: the longest would be refused, and none matters here.
        json.loads(body, object_pairs_hook=check, parse_int=str, parse_float=str)
    except RecursionError:
        raise bad_request("the body's JSON is nested too deeply", code="invalid_json") from None


def is_given(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Tell whether a body has a field, and more in it than null."""
    return name in fields and bytes(fields[name]) != b"null"


def _without_nulls(value: bytes, kinds: Sequence[Any]) -> Any:
    """Leave nulls out wherever JSON is read as a struct; `kinds` are the types as which it may be read."""
    if b"null" not in value or value[:1] not in (b"[", b"{"):
        return msgspec.Raw(value)
    if value.startswith(b"["):
        if not (inner := _inner(kinds, list)):
            return msgspec.Raw(value)
        entries = msgspec.json.decode(value, type=list[msgspec.Raw])
        return [_without_nulls(bytes(each), inner) for each in entries]
    types: dict[str, list[Any]] = {}
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            for field in msgspec.structs.fields(kind):
                types.setdefault(field.encode_name, []).extend(_plain(field.type))
    inner = _inner(kinds, dict)
    if not types and not inner:
        return msgspec.Raw(value)
    fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    return {
        name: _without_nulls(bytes(each), types.get(name, inner))
        for name, each in fields.items()
        if inner or is_given(fields, name)
    }


def _plain(kind: Any) -> list[Any]:
    """The types of a union, without their bounds."""
    if get_origin(kind) in (Annotated, Union, UnionType):
        inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
        return [each for part in inner for each in _plain(part)]
    return [kind]


def _inner(kinds: Sequence[Any], container: type) -> list[Any]:
    """The types of the entries of those that are lists, or of the values of those that are dictionaries."""
    return [each for kind in kinds if get_origin(kind) is container for each in _plain(get_args(kind)[-1])]


def check_values(body: bytes) -> None:
    """Refuse a body that holds millions of values: making them would keep all callers waiting."""
    if (count := count_values(body)) > MAX_VALUES:
        raise bad_request(f"the body holds {count} texts, lists and objects: at most {MAX_VALUES}")


def count_values(body: bytes) -> int:
    """Count the texts, keys, lists and objects of a body of valid JSON."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    count = quotes = 0
    for start in range(0, len(plain), PIECE_BYTES):
        piece = np.frombuffer(plain[start : start + PIECE_BYTES], np.uint8)
        quotes_before = np.cumsum(piece == QUOTE, dtype=np.int64) + quotes
        outside = quotes_before % 2 == 0
        count += int(np.count_nonzero(((piece == LIST) | (piece == OBJECT)) & outside))
        quotes = int(quotes_before[-1])
    return count + quotes // 2


def _at_most(body: bytes) -> int:
    """Bound the count from above at a fraction of the cost: what stands in texts is counted, too."""
    return body.count(b'"') // 2 + body.count(b"[") + body.count(b"{")


async def _receive_all(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(CLIENT_CLOSED, "the caller has gone")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _check_type(content_type: str) -> None:
    # Anything else could be sent by a form on any web page, without asking first.
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(415, f"Content-Type is '{kind[:40]}': send application/json", "Content-Type")


def _not_such_a_request(message: str) -> ApiError:
    """Turn msgspec's complaint, which ends with the field's path unless it is the whole body, into an error."""
    complaint, _, path = message.partition(" - at `$")
    field = path.strip("`").lstrip(".")
    if "unknown field" in complaint:
        name = complaint.split("`")[1]
        return bad_request(f"'{name}' is not a field that this route knows", f"{field}.{name}".lstrip("."))
    return bad_request(f"{repr(field) if field else 'the body'}: {complaint}", field or None)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes, after decompression too")
