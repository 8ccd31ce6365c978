"""``/rerank`` in the body of Hugging Face's Text Embeddings Inference."""

from typing import Annotated, Literal

import msgspec

from hiscore.api.ranking.relevance import Ranker, check_documents
from hiscore.api.wire import SOME, Limit, ModelNames, Request
from hiscore.prompts.truncation import Truncation


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
    """One text of the answer."""

    index: int
    score: float
    text: str | None = None
    truncated: bool = False


async def rerank(
    request: TeiRerankRequest, request_id: str, *, ranker: Ranker, names: ModelNames
) -> list[TeiRank]:
    """Rank the texts of a request."""
    names.check(request.model)
    check_documents(request.texts, "texts")
    truncation = Truncation(
        prompt=ranker.context_length if request.truncate else None,
        left=request.truncation_direction.lower() == "left",
    )
    ranking = await ranker.rank(request.query, request.texts, request_id, request.instruction, truncation)
    scores = ranking.logits if request.raw_scores else ranking.probabilities
    return [
        TeiRank(
            index, scores[index], request.texts[index] if request.return_text else None, ranking.cut[index]
        )
        for index in ranking.best(request.top_n or None)
    ]
