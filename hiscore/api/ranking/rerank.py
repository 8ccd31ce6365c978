"""Reranking in the bodies of Cohere, Jina, vLLM and SGLang, of Text Embeddings Inference, and of NVIDIA's NIM."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import bad_request
from hiscore.api.ranking.relevance import Ranker, Ranking
from hiscore.api.wire import SOME, Count, Ignored, Limit, ModelCall, Request, Usage, usage
from hiscore.prompts.token_limits import Truncation


class Document(msgspec.Struct):
    """A document as an object; other fields than its text are the caller's own."""

    text: str


class RerankRequest(Request):
    """A query and documents.

    `instruction` is ours, and vLLM's, `instruct` SGLang's; a `top_n` of 0 is vLLM's, too: all. Texts are cut only
    by the fields whose names say so: `max_tokens_per_doc` is Cohere's (0: not cut), `truncate_prompt_tokens`
    vLLM's (-1: as many as fit), `max_tokens_per_query` ours. With a `truncation_side` of left documents keep
    their ends.
    """

    query: str
    documents: Annotated[list[str | Document], SOME]
    top_n: Limit | None = None
    return_documents: bool | None = None
    instruction: str | None = None
    instruct: str | None = None
    max_tokens_per_doc: Limit | None = None
    max_tokens_per_query: Count | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    max_chunks_per_doc: Ignored = None
    rank_fields: list[Literal["text"]] | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None


class Result(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: Document | None = None
    truncated: bool = False


class RerankResponse(msgspec.Struct, kw_only=True):
    """The documents, best first; `usage` for Jina's and vLLM's clients, `meta` with `warnings` for Cohere's."""

    id: str
    model: str
    results: list[Result]
    usage: Usage
    meta: dict[str, Any]


async def rerank(ranker: Ranker, request: RerankRequest, call: ModelCall) -> RerankResponse:
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    truncation = Truncation(
        request.max_tokens_per_query,
        request.max_tokens_per_doc or None,
        ranker.most(request.truncate_prompt_tokens),
        left=request.truncation_side == "left",
    )
    if request.instruction is not None and request.instruct is not None:
        raise bad_request("'instruction' and 'instruct' are the same: send one", "instruct")
    instruction = request.instruct if request.instruction is None else request.instruction
    raw = bool(request.raw_scores)
    if request.use_activation is not None:
        if request.raw_scores is not None and raw == request.use_activation:
            raise bad_request("'raw_scores' and 'use_activation' contradict each other", "raw_scores")
        raw = not request.use_activation
    ranking = await ranker.rank(request.query, texts, call, instruction, truncation)
    return RerankResponse(
        id=call.id,
        model=call.model,
        results=_results(ranking, raw, request.top_n or None, texts if request.return_documents else None),
        usage=usage(ranking.prompt_tokens, ranking.cached_tokens),
        meta={
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": ranking.prompt_tokens, "output_tokens": 0},
            **({"warnings": list(ranker.warnings)} if ranker.warnings else {}),
        },
    )


def _results(ranking: Ranking, raw: bool, top_n: int | None, texts: Sequence[str] | None) -> list[Result]:
    documents = [None] * len(ranking.cut) if texts is None else [Document(text) for text in texts]
    scores = ranking.logits if raw else ranking.scores
    return [
        Result(index, scores[index], documents[index], ranking.cut[index]) for index in ranking.best(top_n)
    ]


class TeiRerankRequest(Request):
    """A query and texts; `instruction` is ours, `top_n` what the package rerankers sends (0: all)."""

    query: str
    texts: Annotated[list[str], SOME]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    instruction: str | None = None
    top_n: Limit | None = None


class TeiRank(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    text: str | None = None
    truncated: bool = False


async def rank_texts(ranker: Ranker, request: TeiRerankRequest, call: ModelCall) -> list[TeiRank]:
    truncation = Truncation(
        prompt=ranker.context_length if request.truncate else None,
        left=request.truncation_direction.lower() == "left",
    )
    query, texts = request.query, request.texts
    ranking = await ranker.rank(query, texts, call, request.instruction, truncation, "texts")
    scores = ranking.logits if request.raw_scores else ranking.probabilities
    return [
        TeiRank(index, scores[index], texts[index] if request.return_text else None, ranking.cut[index])
        for index in ranking.best(request.top_n or None)
    ]


class Text(msgspec.Struct):
    text: str


class RankingRequest(Request):
    query: Text
    passages: Annotated[list[Text], SOME]
    truncate: Literal["NONE", "END"] = "NONE"
    instruction: str | None = None


class RankedPassage(msgspec.Struct, omit_defaults=True):
    index: int
    logit: float
    truncated: bool = False


class RankingResponse(msgspec.Struct):
    rankings: list[RankedPassage]
    usage: Usage


async def rank_passages(ranker: Ranker, request: RankingRequest, call: ModelCall) -> RankingResponse:
    texts = [passage.text for passage in request.passages]
    truncation = Truncation(prompt=ranker.context_length if request.truncate == "END" else None)
    query, instruction = request.query.text, request.instruction
    ranked = await ranker.rank(query, texts, call, instruction, truncation, "passages")
    return RankingResponse(
        [RankedPassage(index, ranked.logits[index], ranked.cut[index]) for index in ranked.best(None)],
        usage(ranked.prompt_tokens, ranked.cached_tokens),
    )
