"""The ASGI application: its routes, and what they share."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hiscore.api.chat import chat, completions
from hiscore.api.chat.answer import ChatCompletion
from hiscore.api.chat.generation import Generator
from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.api.chat.sampling import Sampling
from hiscore.api.decisions import decisions, systemone
from hiscore.api.decisions.calibration import read_calibration
from hiscore.api.decisions.decide import Decider
from hiscore.api.http.auth import Keys
from hiscore.api.http.endpoint import Endpoint, Variant, own_or_new_id
from hiscore.api.http.errors import ApiError, cohere_error, nim_error, openai_error, tei_error
from hiscore.api.http.metrics import Metrics
from hiscore.api.models import Models
from hiscore.api.openapi import describe
from hiscore.api.ranking import nim, pairs, rerank, score, tei
from hiscore.api.ranking.relevance import Ranker, make_ranker
from hiscore.api.wire import ModelNames
from hiscore.checkpoint import published_name
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.support import DEFAULT_MAX_CONTEXT, is_classifier, most_context
from hiscore.prompts.chat import read_chat_template, read_json
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.decisions import DecisionPrompter
from hiscore.prompts.rerank import RerankPrompts, make_prompts
from hiscore.prompts.token_limits import TokenLimits
from hiscore.settings import ApiProcessSettings

log = logging.getLogger(__name__)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Application(Starlette):
    """Hands requests to their endpoints, since Starlette's way there takes longer; serves the rest itself."""

    endpoints: Mapping[str, Endpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get(scope["path"]) if scope.get("method") == "POST" else None
        await (endpoint or super().__call__)(scope, receive, send)


class Pages:
    """The routes beside the endpoints: models, readiness, metrics and the OpenAPI description."""

    def __init__(
        self, models: Models, names: ModelNames, metrics: Metrics, keys: Keys, description: bytes
    ) -> None:
        self._models, self._names, self._metrics, self._keys = models, names, metrics, keys
        self._description = description

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._list),
            Route("/v1/models/{name:path}", self._one),
            Route("/health", self._health),
            Route("/metrics", self._page),
            Route("/openapi.json", self._describe),
        ]

    async def _list(self, request: Request) -> Response:
        self._keys.check(request.headers)
        return JSONResponse({"object": "list", "data": [_model(name) for name in self._names.names]})

    async def _one(self, request: Request) -> Response:
        self._keys.check(request.headers)
        if not (name := request.path_params["name"]):
            raise HTTPException(404)
        return JSONResponse(_model(self._names.check(name)))

    async def _health(self, request: Request) -> Response:
        ready = await self._models.is_ready()
        return JSONResponse({"status": "ok" if ready else "the models are not ready"}, 200 if ready else 503)

    async def _page(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type=METRICS_TYPE)

    async def _describe(self, request: Request) -> Response:
        return Response(self._description, media_type="application/json")


def create_app(settings: ApiProcessSettings | None = None, strict: bool = False) -> ASGIApp:
    """Make the application. Its settings come from the environment if none are given.

    A route that cannot serve the checkpoint refuses its requests; with `strict` a template or labels that are set
    and cannot be used are errors.

    Raises:
        ValueError: The file of keys or of temperatures cannot be used.
    """
    settings = settings or ApiProcessSettings()  # type: ignore[call-arg]
    served = settings.served_models.split(",")
    models = Models(settings.backend, served, settings.request_timeout_s)
    names = ModelNames(settings.api_model_names, published_name(settings.checkpoint))
    metrics, keys = Metrics(), Keys(settings.api_keys_file)
    variants_of: dict[str, list[Variant]] = {}
    if "scorer" in served:
        variants_of |= routes(settings, models, names, strict)
    if "decode" in served:
        variants_of |= generating_routes(settings, models, names, metrics)
    endpoints = [
        Endpoint(route, variants, settings, keys, metrics) for route, variants in variants_of.items()
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await models.close()

    app = Application(
        routes=[
            *(Route(each.route, each, methods=["POST"]) for each in endpoints),
            *Pages(models, names, metrics, keys, describe(endpoints)).routes(),
        ],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
        lifespan=lifespan,
    )
    app.endpoints = {each.route: each for each in endpoints}
    if not settings.api_cors_origins:
        return app
    origins = [each.strip() for each in settings.api_cors_origins.split(",")]
    return CORSMiddleware(
        app, origins, ("GET", "POST"), allow_headers=["*"], expose_headers=["x-request-id", "retry-after"]
    )


def routes(
    settings: ApiProcessSettings, models: Models, names: ModelNames, strict: bool
) -> dict[str, list[Variant]]:
    """Make the wire formats of each route that scores."""
    # Whatever the checkpoint's own context is, it is not longer.
    limits_of_ids = TokenLimits(settings.max_context or DEFAULT_MAX_CONTEXT, settings.max_call_tokens)
    ranker = _ranker(settings, models, strict)
    ranked: dict[str, Any] = {"ranker": ranker, "names": names}
    scored = Variant(
        score.ScoreBody,
        score.ScoreResponse,
        partial(
            score.score, models=models, names=names, limits=limits_of_ids, max_labels=settings.max_labels
        ),
        fields=("query", "label_token_ids", "labels"),
    )
    paired = Variant(pairs.PairRequest, pairs.PairResponse, partial(pairs.score_pairs, **ranked))
    reranked = Variant(rerank.RerankRequest, rerank.RerankResponse, partial(rerank.rerank, **ranked))
    tei_ranked = Variant(
        tei.TeiRerankRequest, list[tei.TeiRank], partial(tei.rerank, **ranked), tei_error, fields=("texts",)
    )
    nim_ranked = Variant(nim.RankingRequest, nim.RankingResponse, partial(nim.ranking, **ranked), nim_error)
    decided: dict[str, Any] = {"decider": _decider(settings, models), "names": names}
    warning = "; ".join(ranker.warnings)
    paired, reranked, tei_ranked, nim_ranked = (
        replace(variant, warning=warning) for variant in (paired, reranked, tei_ranked, nim_ranked)
    )
    return {
        "/v1/decisions": [
            Variant(
                decisions.DecisionsRequest,
                decisions.DecisionsResponse,
                partial(decisions.decisions, **decided),
                unique_keys=True,
            )
        ],
        "/v1/systemone": [
            Variant(
                systemone.SystemOneRequest,
                systemone.SystemOneResponse,
                partial(systemone.systemone, **decided),
                unique_keys=True,
            )
        ],
        "/v1/score": [scored, paired],
        "/score": [paired],
        "/v1/rerank": [reranked],
        "/v2/rerank": [replace(reranked, error_shape=cohere_error)],
        "/rerank": [tei_ranked, reranked],
        "/v1/ranking": [nim_ranked],
    }


def generating_routes(
    settings: ApiProcessSettings, models: Models, names: ModelNames, metrics: Metrics
) -> dict[str, list[Variant]]:
    """Make the wire formats of each route that generates text."""
    checkpoint = settings.checkpoint
    has_tokenizer = (checkpoint / "tokenizer.json").is_file()
    generator = Generator(
        models, names, Sampling(checkpoint), LogprobsReader(checkpoint) if has_tokenizer else None, metrics
    )
    chatted = chat.Chat(generator, None)
    try:
        if has_tokenizer and (template := read_chat_template(checkpoint)):
            chatted = chat.Chat(generator, Conversations(checkpoint, template, _limits(settings)))
    except ValueError as error:
        log.error("chat is refused: %s", error)
        chatted = chat.Chat(generator, None, f"this model's chat template cannot be used: {error}")
    completed = completions.Completions(generator)
    return {
        completions.ROUTE: [
            Variant(completions.CompletionRequest, completions.Completion, completed.handle, streams=True)
        ],
        chat.ROUTE: [Variant(chat.ChatRequest, ChatCompletion, chatted.handle, streams=True)],
    }


def _limits(settings: ApiProcessSettings) -> TokenLimits:
    config = read_json(settings.checkpoint / "config.json")
    return TokenLimits(most_context(config, settings.max_context), settings.max_call_tokens)


def _decider(settings: ApiProcessSettings, models: Models) -> Decider:
    checkpoint = settings.checkpoint
    config = read_json(checkpoint / "config.json")
    prompter = None
    if (
        (checkpoint / "tokenizer.json").is_file()
        and config.get("model_type") not in ENCODER_FAMILIES
        and not is_classifier(config.get("architectures"))
    ):
        try:
            prompter = DecisionPrompter(checkpoint, _limits(settings))
        except ValueError as error:
            log.error("questions are refused: %s", error)
    return Decider(models, prompter, read_calibration(settings.calibration), settings.max_body_bytes)


def _ranker(settings: ApiProcessSettings, models: Models, strict: bool) -> Ranker:
    checkpoint, limits = settings.checkpoint, _limits(settings)
    if not (checkpoint / "tokenizer.json").is_file():
        log.warning("the checkpoint has no tokenizer.json: the API scores token ids alone")
        no_tokenizer = "this model has no tokenizer: it takes token ids alone, at /v1/score"
        return Ranker(models, limits, no_tokenizer)
    template, labels = settings.prompt_template, settings.prompt_labels
    names = published_name(checkpoint), Path(settings.model).name
    try:
        prompts, recipe = make_prompts(checkpoint, template, labels.split(",") if labels else (), names)
    except ValueError as error:
        if strict and (template or labels):
            raise
        log.error("rerank requests are refused: %s", error)
        # The name of a file is nothing for callers.
        return Ranker(
            models, limits, f"this model ranks nothing: {'its log says why' if template else error}"
        )
    log.info("rerank requests: %s", recipe)
    for warning in recipe.warnings:
        log.warning("rerank requests: %s", warning)
    if template and isinstance(prompts, RerankPrompts):
        # As everywhere in Jinja, a template's last newline is none of the prompt's.
        log.info("prompts end in %r", prompts.text("", "")[-40:])
    return make_ranker(models, limits, prompts, recipe)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hiscore"}


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path}")
    # A wrong method's answer names the right ones.
    return _error(request, told, error.headers or {})


def _error(request: Request, error: ApiError, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    request_id = own_or_new_id(request.headers)
    body = openai_error(error, request_id)
    return JSONResponse(body, error.status, {**headers, "x-request-id": request_id})
