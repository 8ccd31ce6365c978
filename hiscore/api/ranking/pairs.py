"""``/score`` and ``/v1/score`` in vLLM's body: how well each text of a pair fits the other."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import bad_request
from hiscore.api.ranking.relevance import Ranker
from hiscore.api.wire import SOME, Limit, Listed, ModelCall, Request, exactly_one, usage
from hiscore.prompts.token_limits import Truncation

# The names that versions of vLLM have given to the two sides.
FIRST = ("queries", "text_1", "data_1")
SECOND = ("documents", "text_2", "data_2", "items")


class PairRequest(Request):
    """One text against many, or as many against as many; `instruction` is ours, and vLLM's."""

    queries: str | list[str] | None = None
    text_1: str | list[str] | None = None
    data_1: str | list[str] | None = None
    documents: str | Annotated[list[str], SOME] | None = None
    text_2: str | Annotated[list[str], SOME] | None = None
    data_2: str | Annotated[list[str], SOME] | None = None
    items: str | Annotated[list[str], SOME] | None = None
    instruction: str | None = None
    max_tokens_per_doc: Limit | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None


class PairScore(msgspec.Struct, tag_field="object", tag="score", omit_defaults=True):
    index: int
    score: float
    truncated: bool = False


class PairResponse(Listed, kw_only=True):
    data: list[PairScore]


async def score_pairs(ranker: Ranker, request: PairRequest, call: ModelCall) -> PairResponse:
    _, first = exactly_one({name: getattr(request, name) for name in FIRST})
    param, second = exactly_one({name: getattr(request, name) for name in SECOND})
    documents = [second] if isinstance(second, str) else second
    queries = _spread(first, len(documents))
    truncation = Truncation(
        document=request.max_tokens_per_doc or None,
        left=request.truncation_side == "left",
        prompt=ranker.most(request.truncate_prompt_tokens),
    )
    ranking = await ranker.rank(queries, documents, call, request.instruction, truncation, param)
    scores = ranking.logits if request.use_activation is False else ranking.scores
    return PairResponse(
        id=call.id,
        model=call.model,
        data=[PairScore(index, score, ranking.cut[index]) for index, score in enumerate(scores)],
        usage=usage(ranking.prompt_tokens, ranking.cached_tokens),
    )


def _spread(first: str | list[str], count: int) -> Sequence[str]:
    texts = [first] if isinstance(first, str) else first
    if len(texts) not in (1, count):
        raise bad_request(
            f"{len(texts)} texts cannot be paired with {count}: send one, or as many", "queries"
        )
    return texts * count if len(texts) == 1 else texts
