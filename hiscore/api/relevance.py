"""How relevant documents are to a query, by whatever model there is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hiscore.api.errors import ApiError, bad_request
from hiscore.api.models import Models
from hiscore.prompts.chat import PromptError
from hiscore.prompts.rerank import Prompts, RerankPrompts
from hiscore.prompts.tokenizer import ForbiddenToken

# The logarithm of the smallest float32: a probability of 0 is one below it.
MIN_LOG = math.log(2.0**-149)


@dataclass(frozen=True)
class Ranking:
    """The documents of a call.

    Attributes:
        probabilities: One per document, from 0 to 1.
        logits: Of these: log(p / (1 - p)).
        prompt_tokens: Of all prompts, what they share counted once.
        cached_tokens: Of these, those that came from a cache.
    """

    probabilities: list[float]
    logits: list[float]
    prompt_tokens: int
    cached_tokens: int

    def best(self, top_n: int | None) -> list[int]:
        """Indices of the most relevant documents, best first; of equal ones the first."""
        order = sorted(range(len(self.logits)), key=lambda index: -self.logits[index])
        return order[:top_n]


class Ranker:
    """Ranks documents with a causal LM and its template.

    Args:
        models: Where they are scored.
        prompts: The template; None: there is no tokenizer, and every request is refused.
    """

    def __init__(self, models: Models, prompts: RerankPrompts | None) -> None:
        self._models, self._prompts = models, prompts

    async def rank(
        self, query: str, documents: Sequence[str], instruction: str | None, request_id: str
    ) -> Ranking:
        """Score documents.

        Raises:
            ApiError: The request cannot be served.
        """
        return await self._score(self._ids([query] * len(documents), documents, instruction), request_id)

    async def rank_pairs(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None, request_id: str
    ) -> Ranking:
        """Score each document for its own query.

        Raises:
            ApiError: The request cannot be served.
        """
        return await self._score(self._ids(queries, documents, instruction), request_id)

    def _ids(self, queries: Sequence[str], documents: Sequence[str], instruction: str | None) -> Prompts:
        if self._prompts is None:
            raise bad_request("this model has no tokenizer: it takes token ids alone, at /v1/score")
        try:
            return self._prompts.ids(queries, documents, instruction)
        except ForbiddenToken as error:
            raise bad_request(f"a query or a document cannot be encoded: {error}") from None
        except PromptError as error:
            raise bad_request(str(error)) from None

    async def _score(self, prompts: Prompts, request_id: str) -> Ranking:
        assert self._prompts is not None
        result = await self._models.score_ids(
            prompts.query, prompts.items, self._prompts.label_ids, apply_softmax=True, request_id=request_id
        )
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(result.scores.astype(np.float64)), MIN_LOG)
        return Ranking(
            result.scores[:, 0].tolist(),
            (logs[:, 0] - logs[:, 1]).tolist(),
            result.usage.prompt_tokens,
            result.usage.cached_tokens,
        )


def check_documents(documents: Sequence[object], param: str) -> None:
    """Refuse a request without documents.

    Raises:
        ApiError: There are none.
    """
    if not documents:
        raise ApiError(400, f"'{param}' is empty: at least one is needed", param)
