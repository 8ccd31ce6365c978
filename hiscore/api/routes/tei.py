"""``/rerank`` in the body of Hugging Face's Text Embeddings Inference."""

from typing import Literal

import msgspec

from hiscore.api.errors import bad_request
from hiscore.api.relevance import Ranker, check_documents
from hiscore.api.wire import ModelNames, Request


class TeiRerankRequest(Request):
    """A query and texts; `instruction` is ours."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    instruction: str | None = None


class Rank(msgspec.Struct, omit_defaults=True):
    """One text of the answer."""

    index: int
    score: float
    text: str | None = None


async def rerank(
    request: TeiRerankRequest, request_id: str, *, ranker: Ranker, names: ModelNames
) -> list[Rank]:
    """Rank the texts of a request.

    Raises:
        ApiError: The request cannot be served.
    """
    names.check(request.model)
    check_documents(request.texts, "texts")
    if request.truncate:
        raise bad_request("'truncate' is not known to this server: texts are never cut", "truncate")
    ranking = await ranker.rank(request.query, request.texts, request.instruction, request_id)
    scores = ranking.logits if request.raw_scores else ranking.probabilities
    return [
        Rank(index, scores[index], request.texts[index] if request.return_text else None)
        for index in ranking.best(None)
    ]
