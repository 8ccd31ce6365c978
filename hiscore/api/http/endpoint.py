"""The frame of every POST route: limits, errors, ids, metrics, and callers that leave."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from hiscore.api.http.auth import Keys
from hiscore.api.http.body import check_unique_keys, decode, is_given, read_body
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import CLIENT_CLOSED, ApiError, ErrorShape, openai_error
from hiscore.api.http.events import DONE, HEADERS, EventStream, event
from hiscore.api.http.interruption import Interrupted, Interruptible
from hiscore.api.http.metrics import Metrics
from hiscore.api.http.trace import follow
from hiscore.settings import CANARY_ID, ApiBounds

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
RETRY_LATER = (b"retry-after", b"1")
HANG_UP = (b"connection", b"close")
"""The rest of the body is not read."""
HEADERS_OF = {
    401: [(b"www-authenticate", b"Bearer")],
    408: [HANG_UP],
    413: [HANG_UP],
    429: [RETRY_LATER],
    503: [RETRY_LATER],
}
# Seconds until a request's body must be complete: the largest in that time takes 4.5 Mbit/s.
BODY_TIMEOUT_S = 60.0
# Shorter work is not worth cancelling, and to watch its caller would take a part of its time.
WATCH_AFTER_S = 0.02
# Seconds that the reader of a stream may need beyond those of the models.
SLOWEST_READER_S = 60


@dataclass(frozen=True)
class Variant:
    """One wire format of a route.

    Attributes:
        handle: Does the work, given the body and the request's id; raises `ApiError`.
        fields: Fields by any of which a body is known as this; none: any other body.
        streams: The answer may be an `EventStream`.
        unique_keys: Refuse objects that hold a key twice, since keys are names that callers choose.
        warning: What callers should know of every answer; it becomes a header.
    """

    request: type[Any]
    response: Any
    handle: Callable[[Any, str], Awaitable[Any]]
    error_shape: ErrorShape = openai_error
    fields: tuple[str, ...] = ()
    streams: bool = False
    unique_keys: bool = False
    warning: str = ""


class Endpoint:
    """The ASGI application of one POST route; the last variant takes all bodies that no other does."""

    def __init__(
        self, route: str, variants: Sequence[Variant], settings: ApiBounds, keys: Keys, metrics: Metrics
    ) -> None:
        self.route, self.variants = route, variants
        self._settings, self._keys, self._metrics = settings, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        headers = headers_of(scope)
        request_id = own_or_new_id(headers)
        follow(headers)
        self._metrics.started(self.route)
        status = CLIENT_CLOSED
        variant, answer = self.variants[-1], None
        try:
            try:
                self._keys.check(headers)
                body = await read_body(receive, headers, self._settings.max_body_bytes, BODY_TIMEOUT_S)
                variant = self._variant_of(body)
                # Held until the answer has been sent: thousands of numbers take a while to free.
                request = decode(body, variant.request)
                if variant.unique_keys:
                    await off_loop(partial(check_unique_keys, body), len(body))
                answer = await unless_gone(receive, variant.handle(request, request_id))
            except Exception as error:
                answer = self._failure(error, request_id)
            if isinstance(answer, EventStream):
                send_all = self._send_events(answer, variant, send, request_id)
                # Nobody is left to tell, or somebody who does not read.
                with suppress(ApiError, asyncio.TimeoutError, TimeoutError):
                    most = self._settings.request_timeout_s + SLOWEST_READER_S
                    status = await asyncio.wait_for(unless_gone(receive, send_all), most)
                return
            failed = isinstance(answer, ApiError)
            status = answer.status if failed else 200
            if status != CLIENT_CLOSED:
                content = msgspec.json.encode(variant.error_shape(answer, request_id) if failed else answer)
                head = [
                    (b"content-length", str(len(content)).encode()),
                    (b"content-type", b"application/json"),
                    (b"x-request-id", request_id.encode()),
                    *HEADERS_OF.get(status, ()),
                ]
                if variant.warning and not failed:
                    head.append((b"x-hiscore-warning", variant.warning.encode()))
                await send({"type": "http.response.start", "status": status, "headers": head})
                await send({"type": "http.response.body", "body": content})
        finally:
            self._metrics.finished(self.route, status, time.perf_counter() - started)

    async def _send_events(self, stream: EventStream, variant: Variant, send: Send, request_id: str) -> int:
        """Send an answer in events; a failure is one more. Returns the status that it would have had alone."""
        head = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        head.append((b"x-request-id", request_id.encode()))
        status = 200

        async def tell(data: Any) -> None:
            # Waits for a reader that is slow, and with it the models' stream.
            await send({"type": "http.response.body", "body": event(data), "more_body": True})

        async with aclosing(stream.others) as others:
            await send({"type": "http.response.start", "status": status, "headers": head})
            try:
                await tell(stream.first)
                async for each in others:
                    await tell(each)
            except Exception as error:
                failure = self._failure(error, request_id)
                status = failure.status
                await tell(variant.error_shape(failure, request_id))
            await send({"type": "http.response.body", "body": DONE})
        return status

    def _failure(self, error: Exception, request_id: str) -> ApiError:
        if isinstance(error, ApiError):
            return error
        log.error("request %s to %s failed", request_id, self.route, exc_info=error)
        return ApiError(500, "the request failed inside the server; its log says why")

    def _variant_of(self, body: bytes) -> Variant:
        if len(self.variants) > 1:
            fields = decode(body, dict[str, msgspec.Raw])
            for variant in self.variants:
                if any(is_given(fields, name) for name in variant.fields):
                    return variant
        return self.variants[-1]


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Do a request's work, but cancel it if the caller leaves, and raise `ApiError`."""
    loop = asyncio.get_running_loop()
    watch: asyncio.Task[None] | None = None
    try:
        with Interruptible() as working:

            def begin() -> None:
                nonlocal watch
                watch = loop.create_task(_disconnected(receive))
                watch.add_done_callback(lambda _: working.interrupt())

            timer = loop.call_later(WATCH_AFTER_S, begin)
            try:
                return await work
            finally:
                timer.cancel()
                if watch is not None:
                    watch.cancel()
    except Interrupted:
        raise ApiError(CLIENT_CLOSED, "the caller has gone") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers, by their names in lower case; of several of a name, the first."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def own_or_new_id(headers: Mapping[str, str]) -> str:
    """The request's id: the caller's, if it can stand in a header and in a log, or a new one."""
    given = headers.get("x-request-id", "")
    if REQUEST_ID.fullmatch(given) and given != CANARY_ID:
        return given
    return secrets.token_hex(16)
