"""What every POST route does around its own work: limits, errors, ids, metrics, and callers that leave."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hiscore.api.auth import Keys
from hiscore.api.body import decode, read_body
from hiscore.api.errors import CLIENT_CLOSED, ApiError, ErrorShape, openai_error
from hiscore.api.metrics import Metrics
from hiscore.settings import CANARY_ID, ApiSettings

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Variant:
    """One wire format of a route.

    Attributes:
        request: The type of its body.
        response: The type of its answer.
        handle: Does the work, given the body and the request's id; raises `ApiError`.
        error_shape: How its errors are written.
        field: The field by which a body is known as this; empty: any other body.
    """

    request: type[Any]
    response: Any
    handle: Callable[[Any, str], Awaitable[Any]]
    error_shape: ErrorShape = openai_error
    field: str = ""


class Endpoint:
    """The ASGI application of one POST route.

    Args:
        route: Its path.
        variants: Its wire formats; the last one takes all bodies that no other does.
        settings: Limits.
        keys: Who may call.
        metrics: Where requests are counted.
    """

    def __init__(
        self,
        route: str,
        variants: Sequence[Variant],
        settings: ApiSettings,
        keys: Keys,
        metrics: Metrics,
    ) -> None:
        self.route, self.variants = route, variants
        self._settings, self._keys, self._metrics = settings, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = own_or_new_id(headers)
        self._metrics.started(self.route)
        status = CLIENT_CLOSED
        try:
            status, body = await self._answer(headers, receive, request_id)
            if status != CLIENT_CLOSED:
                response = Response(body, status, {"x-request-id": request_id}, "application/json")
                if status in (429, 503):
                    response.headers["retry-after"] = str(RETRY_AFTER_S)
                if status in (401,):
                    response.headers["www-authenticate"] = "Bearer"
                if status in (408, 413):
                    # What is left of the body is not read.
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
        finally:
            self._metrics.finished(self.route, status, time.perf_counter() - started)

    async def _answer(self, headers: Headers, receive: Receive, request_id: str) -> tuple[int, bytes]:
        variant = self.variants[-1]
        try:
            self._keys.check(headers)
            settings = self._settings
            body = await read_body(receive, headers, settings.api_max_body_bytes, settings.api_body_timeout_s)
            variant = self._variant_of(body)
            work = variant.handle(decode(body, variant.request), request_id)
            return 200, msgspec.json.encode(await unless_gone(receive, work))
        except ApiError as error:
            failure = error
        except Exception:
            log.exception("request %s to %s failed", request_id, self.route)
            failure = ApiError(500, "the request failed inside the server; its log says why")
        return failure.status, msgspec.json.encode(variant.error_shape(failure, request_id))

    def _variant_of(self, body: bytes) -> Variant:
        if len(self.variants) > 1:
            fields = decode(body, dict[str, msgspec.Raw])
            for variant in self.variants:
                if variant.field in fields:
                    return variant
        return self.variants[-1]


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Do a request's work, but cancel it if the caller leaves.

    Raises:
        ApiError: The caller has left.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED, "the caller has gone")
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def own_or_new_id(headers: Headers) -> str:
    """The request's id: the caller's, if it can stand in a header and in a log, or a new one."""
    given = headers.get("x-request-id", "")
    if REQUEST_ID.fullmatch(given) and given != CANARY_ID:
        return given
    return uuid.uuid4().hex
