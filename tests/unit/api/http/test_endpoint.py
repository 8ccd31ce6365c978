"""What every POST route does around its own work."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from starlette.datastructures import Headers

from hiscore.api.http.auth import Keys
from hiscore.api.http.endpoint import WATCH_AFTER_S, Endpoint, Variant, own_or_new_id, unless_gone
from hiscore.api.http.errors import CLIENT_CLOSED, ApiError, tei_error
from hiscore.api.http.metrics import Metrics
from hiscore.settings import CANARY_ID, ApiBounds

Handler = Callable[[Any, str], Awaitable[Any]]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    number: int | None = None
    text: str | None = None


async def echo(body: Body, request_id: str) -> dict[str, Any]:
    return {"number": body.number, "text": body.text, "id": request_id}


def call(
    handle: Handler = echo, body: bytes = b'{"number": 7}', leaves: bool = False, **headers: str
) -> tuple[int, dict[str, str], Any, str]:
    """Status, headers and body of an answer, and the page of metrics; leaves: the caller, after the body."""
    metrics = Metrics()
    variants = [Variant(Body, dict, handle, tei_error, fields=("text",)), Variant(Body, dict, handle)]
    endpoint = Endpoint("/route", variants, ApiBounds(max_body_bytes=100), Keys(None), metrics)
    given = {"content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.01 if leaves else 60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    asyncio.run(endpoint({"type": "http", "headers": raw}, receive, send))
    page = metrics.page().decode()
    if not sent:
        return 0, {}, None, page
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, msgspec.json.decode(sent[1]["body"]), page


def counted(page: str, status: int) -> bool:
    return (
        f'hiscore_api_requests_total{{route="/route",status="{status}"}} 1' in page
        and 'hiscore_api_requests_running{route="/route"} 0' in page
    )


def test_an_answer_carries_the_requests_id() -> None:
    status, headers, body, page = call(x_request_id="mine")
    assert (status, body) == (200, {"number": 7, "text": None, "id": "mine"})
    assert headers["x-request-id"] == "mine"
    assert headers["content-type"] == "application/json"
    assert "connection" not in headers
    assert counted(page, 200)


@pytest.mark.parametrize("given", ["", "a b", "a\nb", "x" * 129, "ü", CANARY_ID])
def test_an_id_that_cannot_be_used_is_replaced(given: str) -> None:
    first, second = (own_or_new_id(Headers({"x-request-id": given})) for _ in range(2))
    assert given not in (first, second)
    assert first != second
    assert own_or_new_id(Headers({"x-request-id": "x" * 128})) == "x" * 128


def fails(error: Exception) -> Handler:
    async def handle(body: Body, request_id: str) -> Any:
        raise error

    return handle


@pytest.mark.parametrize(
    ("status", "header"),
    [
        (400, None),
        (401, ("www-authenticate", "Bearer")),
        (408, ("connection", "close")),
        (413, ("connection", "close")),
        (429, ("retry-after", "1")),
        (503, ("retry-after", "1")),
        (504, None),
    ],
)
def test_an_error_has_its_status_and_headers(status: int, header: tuple[str, str] | None) -> None:
    found, headers, body, page = call(fails(ApiError(status, "why", "number")))
    assert found == status
    assert body["error"]["message"] == "why"
    rest = {"www-authenticate", "connection", "retry-after"} & set(headers)
    assert rest == ({header[0]} if header else set())
    assert header is None or headers[header[0]] == header[1]
    assert counted(page, status)


def test_an_unexpected_failure_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    status, _, body, page = call(fails(RuntimeError("/secret/path")), x_request_id="mine")
    assert status == 500
    assert "/secret" not in str(body)
    assert body["error"]["request_id"] == "mine"
    assert "/secret/path" in caplog.text, "the log has them"
    assert counted(page, 500)


def test_a_field_tells_the_variant() -> None:
    error = fails(ApiError(400, "why"))
    assert "error_type" in call(error, b'{"text": "a"}')[2]
    assert "error_type" not in call(error, b'{"number": 1}')[2]
    # Not even an object: the last variant's error.
    assert "type" in call(error, b"[]")[2]["error"]


def test_a_body_beyond_the_limit() -> None:
    status, headers, _, page = call(body=b" " * 101)
    assert (status, headers["connection"]) == (413, "close")
    assert counted(page, 413)


def test_work_ends_when_its_caller_leaves() -> None:
    seen = []

    async def work(body: Body, request_id: str) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    status, _, _, page = call(work, leaves=True)
    assert status == 0, "nobody is there to be answered"
    assert seen == ["cancelled"]
    assert counted(page, CLIENT_CLOSED)


def test_control_work_that_is_done_before_its_caller_leaves_is_answered() -> None:
    assert call(leaves=True)[0] == 200


@pytest.mark.parametrize(("seconds", "watched"), [(0, False), (3 * WATCH_AFTER_S, True)])
def test_callers_are_watched_while_long_work_runs_alone(seconds: float, watched: bool) -> None:
    asked = []

    async def receive() -> Any:
        asked.append("receive")
        await asyncio.sleep(60)

    async def call_it() -> Any:
        return await unless_gone(receive, asyncio.sleep(seconds, "done"))

    assert asyncio.run(call_it()) == "done"
    assert asked == ["receive"] * watched


def test_a_request_is_freed_after_its_answer_has_been_sent() -> None:
    seen: list[tuple[str, bool]] = []

    class Kept(msgspec.Struct, weakref=True):
        numbers: list[int]

    async def handle(body: Kept, request_id: str) -> Any:
        refs.append(weakref.ref(body))
        return {}

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"numbers": [1]}', "more_body": False}

    async def send(message: Any) -> None:
        seen.append((message["type"], refs[0]() is not None))

    refs: list[weakref.ref[Kept]] = []
    endpoint = Endpoint("/route", [Variant(Kept, dict, handle)], ApiBounds(), Keys(None), Metrics())
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    asyncio.run(endpoint(scope, receive, send))
    assert seen == [("http.response.start", True), ("http.response.body", True)]
    assert refs[0]() is None
