"""The ASGI application: its routes, and what they share."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hiscore.api.chat import chat, completions, tokenize
from hiscore.api.chat.generation import Generator
from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.api.chat.prompt_logprobs import PromptScorer
from hiscore.api.chat.sampling import Sampling
from hiscore.api.chat.tokenize import PromptCoder
from hiscore.api.decisions import decisions, systemone
from hiscore.api.decisions.calibration import read_calibration
from hiscore.api.decisions.decide import Decider
from hiscore.api.http.auth import Keys
from hiscore.api.http.endpoint import Endpoint, Variant, own_or_new_id
from hiscore.api.http.errors import ApiError, cohere_error, nim_error, openai_error, tei_error
from hiscore.api.http.metrics import Metrics
from hiscore.api.models import Models
from hiscore.api.pages import Pages
from hiscore.api.ranking import pairs, pooling, rerank, score
from hiscore.api.ranking.relevance import Ranker
from hiscore.api.wire import ModelNames
from hiscore.checkpoint import published_name
from hiscore.models.adapter_files import read_adapters
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.family import is_classifier
from hiscore.models.stored_config import stored_config
from hiscore.models.support import DEFAULT_MAX_CONTEXT, label_names, most_context
from hiscore.prompts import code_readout
from hiscore.prompts.chat import read_chat_template, read_json
from hiscore.prompts.code_readout import CodePrompter
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.decisions import DecisionPrompter
from hiscore.prompts.rerank import RerankPrompts, make_prompts
from hiscore.prompts.token_limits import TokenLimits
from hiscore.settings import ApiProcessSettings

log = logging.getLogger(__name__)


class Application(Starlette):
    """Hands requests to their endpoints, since Starlette's way there takes longer; serves the rest itself."""

    endpoints: Mapping[str, Endpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get(scope["path"]) if scope.get("method") == "POST" else None
        await (endpoint or super().__call__)(scope, receive, send)


def create_app(settings: ApiProcessSettings | None = None, strict: bool = False) -> ASGIApp:
    """Make the application. Its settings come from the environment if none are given.

    A route that cannot serve the checkpoint refuses its requests; with `strict` a template or labels that are set
    and cannot be used are errors.

    Raises:
        ValueError: The file of keys or of temperatures, or an adapter, cannot be used.
    """
    settings = settings or ApiProcessSettings()  # type: ignore[call-arg]
    served = settings.served_models.split(",")
    models = Models(settings.backend, served, settings.request_timeout_s)
    adapters = read_adapters(settings.adapter_directories)
    own_labels = len(label_names(settings.checkpoint))
    names = ModelNames(settings.api_model_names, published_name(settings.checkpoint), adapters, own_labels)
    metrics, keys = Metrics(), Keys(settings.api_keys_file)
    variants_of: dict[str, list[Variant]] = {}
    if "scorer" in served:
        variants_of |= routes(settings, models, names, strict)
    variants_of |= generating_routes(settings, models, names, metrics, served)
    endpoints = [
        Endpoint(route, variants, settings, keys, metrics) for route, variants in variants_of.items()
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await models.close()

    pages = Pages(models, names, metrics, keys, endpoints, settings.api_page)
    app = Application(
        routes=[*(Route(each.route, each, methods=["POST"]) for each in endpoints), *pages.routes()],
        exception_handlers={HTTPException: _error, ApiError: _error},
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
    variant = partial(_variant, names)
    # Whatever the checkpoint's own context is, it is not longer.
    limits_of_ids = TokenLimits(settings.max_context or DEFAULT_MAX_CONTEXT, settings.max_call_tokens)
    ranker = _ranker(settings, models, strict)
    ranks = partial(variant, warning="; ".join(ranker.warnings))
    reads_heads = partial(variant, any_head=True)
    by_ids = ("query", "label_token_ids", "labels")
    scored = reads_heads(score.score, models, limits_of_ids, fields=by_ids)
    paired, reranked = ranks(pairs.score_pairs, ranker), ranks(rerank.rerank, ranker)
    tei_ranked = ranks(rerank.rank_texts, ranker, error_shape=tei_error, fields=("texts",))
    asks = partial(variant, unique_keys=True)
    decider = _decider(settings, models)
    of_classifiers = {}
    has_heads = any(each.labels for each in names.adapters.values())
    if has_heads or is_classifier(stored_config(settings.checkpoint).get("architectures")):
        pooler = pooling.Pooler(models, names.adapters, settings.checkpoint, _limits(settings))
        of_classifiers["/pooling"] = [reads_heads(pooler.handle)]
        of_classifiers["/predict"] = [reads_heads(pooler.predict, error_shape=tei_error)]
        of_classifiers["/classify"] = of_classifiers["/v1/classify"] = [reads_heads(pooler.classify)]
    return {
        "/v1/decisions": [asks(decisions.decisions, decider)],
        "/v1/systemone": [asks(systemone.systemone, decider)],
        "/v1/score": [scored, paired],
        "/score": [paired],
        "/v1/rerank": [reranked],
        "/v2/rerank": [replace(reranked, error_shape=cohere_error)],
        "/rerank": [tei_ranked, reranked],
        "/v1/ranking": [ranks(rerank.rank_passages, ranker, error_shape=nim_error)],
        **of_classifiers,
    }


def generating_routes(
    settings: ApiProcessSettings, models: Models, names: ModelNames, metrics: Metrics, served: Sequence[str]
) -> dict[str, list[Variant]]:
    checkpoint, variant = settings.checkpoint, partial(_variant, names)
    has_tokenizer = (checkpoint / "tokenizer.json").is_file()
    logprobs = LogprobsReader(checkpoint) if has_tokenizer else None
    generator = Generator(models, Sampling(checkpoint), logprobs, metrics)
    found: dict[str, list[Variant]] = {}
    scorer = coder = conversations = None
    if has_tokenizer:
        coder = PromptCoder(checkpoint, _limits(settings))
        if "scorer" in served and generator.logprobs is not None and _is_causal(checkpoint):
            scorer = PromptScorer(models, generator.logprobs, checkpoint, coder)
    chatted = chat.Chat(generator, None)
    try:
        if has_tokenizer and (template := read_chat_template(checkpoint)):
            conversations = Conversations(checkpoint, template, _limits(settings))
            chatted = chat.Chat(generator, conversations)
    except ValueError as error:
        log.error("chat is refused: %s", error)
        chatted = chat.Chat(generator, None, f"this model's chat template cannot be used: {error}")
    if coder is not None:
        tokens = tokenize.Tokenizer(coder, conversations)
        found["/tokenize"] = [variant(tokens.tokenize, any_head=True)]
        found["/detokenize"] = [variant(tokens.detokenize, any_head=True)]
    if scorer is not None or "decode" in served:
        completed = completions.Completions(generator, scorer, "decode" in served)
        found[completions.ROUTE] = [variant(completed.handle)]
    if "decode" in served:
        found[chat.ROUTE] = [variant(chatted.handle)]
    return found


def _variant(
    names: ModelNames,
    handle: Callable[..., Awaitable[Any]],
    *first: Any,
    any_head: bool = False,
    **details: Any,
) -> Variant:
    """Make a variant of what handles its calls: the annotations name the request and the answer."""
    hints = get_type_hints(handle)
    answer, streams = hints["return"], False
    if isinstance(answer, UnionType):
        answer, streams = get_args(answer)[0], True

    def handled(request: Any, request_id: str) -> Awaitable[Any]:
        return handle(*first, request, names.call(request.model, request_id, any_head))

    return Variant(hints["request"], answer, handled, streams=streams, **details)


def _limits(settings: ApiProcessSettings) -> TokenLimits:
    config = read_json(settings.checkpoint / "config.json")
    return TokenLimits(most_context(config, settings.max_context), settings.max_call_tokens)


def _is_causal(checkpoint: Path) -> bool:
    config = read_json(checkpoint / "config.json")
    return config.get("model_type") not in ENCODER_FAMILIES and not is_classifier(config.get("architectures"))


def _decider(settings: ApiProcessSettings, models: Models) -> Decider:
    checkpoint = settings.checkpoint
    prompter = None
    if (checkpoint / "tokenizer.json").is_file() and _is_causal(checkpoint):
        try:
            kind = CodePrompter if (checkpoint / code_readout.FILE).is_file() else DecisionPrompter
            prompter = kind(checkpoint, _limits(settings))
        except ValueError as error:
            log.error("questions are refused: %s", error)
    return Decider(models, prompter, read_calibration(settings.calibration), settings.max_body_bytes)


def _ranker(settings: ApiProcessSettings, models: Models, strict: bool) -> Ranker:
    checkpoint, limits = settings.checkpoint, _limits(settings)
    if not (checkpoint / "tokenizer.json").is_file():
        log.warning("the checkpoint has no tokenizer.json: the API scores token ids alone")
        no_tokenizer = "this model has no tokenizer: it takes token ids alone, at /v1/score"
        return Ranker(models, limits, refusal=no_tokenizer)
    template, labels = settings.prompt_template, settings.prompt_labels
    names = published_name(checkpoint), Path(settings.model).name
    try:
        prompts, recipe = make_prompts(checkpoint, template, labels.split(",") if labels else (), names)
    except ValueError as error:
        if strict and (template or labels):
            raise
        log.error("rerank requests are refused: %s", error)
        # The name of a file is nothing for callers.
        why = "its log says why" if template else error
        return Ranker(models, limits, refusal=f"this model ranks nothing: {why}")
    log.info("rerank requests: %s", recipe)
    for warning in recipe.warnings:
        log.warning("rerank requests: %s", warning)
    if template and isinstance(prompts, RerankPrompts):
        # As everywhere in Jinja, a template's last newline is none of the prompt's.
        log.info("prompts end in %r", prompts.text("", "")[-40:])
    return Ranker(models, limits, prompts, recipe)


async def _error(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        # A wrong method's answer names the right ones.
        headers = error.headers or {}
        error = ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path}")
    assert isinstance(error, ApiError)
    request_id = own_or_new_id(request.headers)
    body = openai_error(error, request_id)
    return JSONResponse(body, error.status, {**headers, "x-request-id": request_id})
