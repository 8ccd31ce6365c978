"""Reranking in the bodies of Cohere, Jina, vLLM and SGLang: ``/v1/rerank``, ``/v2/rerank`` and ``/rerank``."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import bad_request
from hiscore.api.ranking.relevance import Ranker, Ranking, check_documents
from hiscore.api.wire import SOME, Count, Ignored, Limit, ModelNames, Request, Usage, usage
from hiscore.prompts.truncation import Truncation


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
    use_activation: Literal[True] | None = None


class Result(msgspec.Struct, omit_defaults=True):
    """One document of the answer."""

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


async def rerank(
    request: RerankRequest, request_id: str, *, ranker: Ranker, names: ModelNames
) -> RerankResponse:
    """Rank the documents of a request."""
    model = names.check(request.model)
    check_documents(request.documents, "documents")
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    prompt_tokens = request.truncate_prompt_tokens
    truncation = Truncation(
        request.max_tokens_per_query,
        request.max_tokens_per_doc or None,
        ranker.context_length if prompt_tokens == -1 else prompt_tokens,
        left=request.truncation_side == "left",
    )
    if request.instruction is not None and request.instruct is not None:
        raise bad_request("'instruction' and 'instruct' are the same: send one", "instruct")
    instruction = request.instruct if request.instruction is None else request.instruction
    ranking = await ranker.rank(request.query, texts, request_id, instruction, truncation)
    return RerankResponse(
        id=request_id,
        model=model,
        results=_results(ranking, request.top_n or None, texts if request.return_documents else None),
        usage=usage(ranking.prompt_tokens, ranking.cached_tokens),
        meta={
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": ranking.prompt_tokens, "output_tokens": 0},
            **({"warnings": list(ranker.warnings)} if ranker.warnings else {}),
        },
    )


def _results(ranking: Ranking, top_n: int | None, texts: Sequence[str] | None) -> list[Result]:
    documents = [None] * len(ranking.cut) if texts is None else [Document(text) for text in texts]
    return [
        Result(index, ranking.probabilities[index], documents[index], ranking.cut[index])
        for index in ranking.best(top_n)
    ]
