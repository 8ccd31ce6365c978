"""``/v1/ranking`` in the body of NVIDIA's NIM for reranking."""

from typing import Annotated, Literal

import msgspec

from hiscore.api.ranking.relevance import Ranker, check_documents
from hiscore.api.wire import SOME, ModelNames, Request, Usage, usage
from hiscore.prompts.truncation import Truncation


class Text(msgspec.Struct):
    """A query or a passage."""

    text: str


class RankingRequest(Request):
    """A query and passages; `instruction` is ours."""

    query: Text
    passages: Annotated[list[Text], SOME]
    truncate: Literal["NONE", "END"] = "NONE"
    instruction: str | None = None


class RankedPassage(msgspec.Struct, omit_defaults=True):
    """One passage of the answer."""

    index: int
    logit: float
    truncated: bool = False


class RankingResponse(msgspec.Struct):
    """The passages, best first."""

    rankings: list[RankedPassage]
    usage: Usage


async def ranking(
    request: RankingRequest, request_id: str, *, ranker: Ranker, names: ModelNames
) -> RankingResponse:
    """Rank the passages of a request."""
    names.check(request.model)
    check_documents(request.passages, "passages")
    texts = [passage.text for passage in request.passages]
    truncation = Truncation(prompt=ranker.context_length if request.truncate == "END" else None)
    ranked = await ranker.rank(request.query.text, texts, request_id, request.instruction, truncation)
    return RankingResponse(
        [RankedPassage(index, ranked.logits[index], ranked.cut[index]) for index in ranked.best(None)],
        usage(ranked.prompt_tokens, ranked.cached_tokens),
    )
