"""The routes beside the endpoints: models, readiness, metrics, the OpenAPI description, a page to try things."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hiscore import __version__
from hiscore.api.http.auth import Keys
from hiscore.api.http.endpoint import Endpoint
from hiscore.api.http.metrics import Metrics
from hiscore.api.models import Models
from hiscore.api.wire import ModelNames

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE, DOCUMENT = Path(__file__).with_name("page.html"), Path(__file__).with_name("openapi.json")
REFERENCE = "#/components/schemas/{name}"
INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)


class Pages:
    """Answers GET requests. The page at ``/`` is the only one in HTML; it calls the public routes alone."""

    def __init__(
        self,
        models: Models,
        names: ModelNames,
        metrics: Metrics,
        keys: Keys,
        endpoints: Sequence[Endpoint],
        has_page: bool,
    ) -> None:
        self._models, self._names, self._metrics, self._keys = models, names, metrics, keys
        self._description = _description(endpoints, has_page)
        self._content = PAGE.read_bytes() if has_page else None

    def routes(self) -> list[Route]:
        page = [Route("/", self._page)] if self._content else []
        return [
            *page,
            Route("/v1/models", self._list),
            Route("/v1/models/{name:path}", self._one),
            Route("/health", self._health),
            Route("/metrics", self._count),
            Route("/openapi.json", self._describe),
        ]

    async def _page(self, request: Request) -> Response:
        assert self._content is not None
        return HTMLResponse(self._content, headers=page_headers(self._content))

    async def _list(self, request: Request) -> Response:
        self._keys.check(request.headers)
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._names.names]})

    async def _one(self, request: Request) -> Response:
        self._keys.check(request.headers)
        if not (name := request.path_params["name"]):
            raise HTTPException(404)
        return JSONResponse(self._model(self._names.check(name)))

    def _model(self, name: str) -> dict[str, Any]:
        """Describe a model; like vLLM's, an adapter has its checkpoint as `parent`."""
        parent = {"parent": self._names.first} if name in self._names.adapters else {}
        return {"id": name, "object": "model", "created": 0, "owned_by": "hiscore", **parent}

    async def _health(self, request: Request) -> Response:
        ready = await self._models.is_ready()
        return JSONResponse({"status": "ok" if ready else "the models are not ready"}, 200 if ready else 503)

    async def _count(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type=METRICS_TYPE)

    async def _describe(self, request: Request) -> Response:
        return Response(self._description, media_type="application/json")


def page_headers(page: bytes) -> Mapping[str, str]:
    """Allow a page its own style and script, calls of its own origin, and nothing else."""
    digests = {kind: hashlib.sha256(content).digest() for kind, content in INLINE.findall(page)}
    hashes = {kind: f"'sha256-{base64.b64encode(each).decode()}'" for kind, each in digests.items()}
    policy = (
        f"default-src 'none'; connect-src 'self'; style-src {hashes[b'style']}; script-src {hashes[b'script']}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _description(endpoints: Sequence[Endpoint], has_page: bool) -> bytes:
    """Describe the served routes: DOCUMENT has the texts of all routes, and the types give the schemas."""
    document = json.loads(DOCUMENT.read_text("utf-8"))
    every, errors = document.pop("paths"), document.pop("errors")
    types = [
        kind
        for each in endpoints
        for variant in each.variants
        for kind in (variant.request, variant.response)
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    for component in components.values():
        if component.get("additionalProperties") is False:  # a field that is not known may be null
            component["additionalProperties"] = {"type": "null"}
    schema_of = iter(schemas)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        pairs = [(next(schema_of), next(schema_of)) for _ in endpoint.variants]
        requests, responses = (_one_of(list(column)) for column in zip(*pairs, strict=True))
        answers: dict[str, Any] = {"application/json": {"schema": responses}}
        if any(variant.streams for variant in endpoint.variants):
            answers["text/event-stream"] = {"schema": {"type": "string"}}
        operation = every[endpoint.route]["post"]
        operation["requestBody"]["content"]["application/json"]["schema"] = requests
        operation["responses"] = {"200": {"description": "The answer", "content": answers}, **errors}
        paths[endpoint.route] = {"post": operation}
    pages = {route: each for route, each in every.items() if "get" in each and (has_page or route != "/")}
    document["info"]["version"] = __version__
    return msgspec.json.encode(document | {"paths": paths | pages, "components": {"schemas": components}})


def _one_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
