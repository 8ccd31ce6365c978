"""How relevant documents are to a query, by whatever model there is."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from hiscore.api.encoding import off_loop
from hiscore.api.errors import ApiError, bad_request
from hiscore.api.models import Models
from hiscore.prompts.cannot_encode import CannotEncode
from hiscore.prompts.chat import PromptError
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.rerank import AROUND_A_PAIR, ClassifierPairs, RerankPrompts
from hiscore.prompts.shared_beginning import Prompts
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.prompts.truncation import NOTHING, Cut, Truncation, cut_prompts

Made = TypeVar("Made", list[Prompts], Cut)
# The logarithm of the smallest float32: a probability of 0 is one below it.
MIN_LOG = math.log(2.0**-149)


@dataclass(frozen=True)
class Ranking:
    """The documents of a call.

    Attributes:
        probabilities: One per document, from 0 to 1.
        logits: log(p / (1 - p)) of each of these.
        prompt_tokens: Tokens of all prompts, those that they share counted once.
        cached_tokens: How many of these came from a cache.
        cut: Whether a document, or its query, was cut.
    """

    probabilities: list[float]
    logits: list[float]
    prompt_tokens: int
    cached_tokens: int
    cut: list[bool]

    def best(self, top_n: int | None) -> list[int]:
        """Indices of the most relevant documents, best first; of equal ones the first."""
        order = sorted(range(len(self.logits)), key=lambda index: -self.logits[index])
        return order[:top_n]


class Ranker:
    """Ranks documents with a causal LM and its template, with a classifier of one class, or with an encoder.

    Args:
        models: Where they are scored.
        prompts: How they become prompts; None: there is no tokenizer, and every request is refused.
        limits: Tokens that prompts may have.
    """

    def __init__(
        self,
        models: Models,
        prompts: RerankPrompts | ClassifierPairs | PairPrompts | None,
        limits: TokenLimits,
    ) -> None:
        self._models, self._prompts, self._limits = models, prompts, limits

    @property
    def context_length(self) -> int:
        """Tokens that a prompt may have."""
        return self._limits.context

    async def rank(
        self,
        query: str | Sequence[str],
        documents: Sequence[str],
        request_id: str,
        instruction: str | None = None,
        truncation: Truncation = NOTHING,
    ) -> Ranking:
        """Score documents.

        Args:
            query: One for all, or one for each.
            documents: At least one.
            request_id: Names the call in errors and in the server's log.
            instruction: What relevant means; None: the template's own.
            truncation: What may be cut.

        Raises:
            ApiError: The request cannot be served.
        """
        if self._prompts is None:
            raise bad_request("this model has no tokenizer: it takes token ids alone, at /v1/score")
        queries = [query] * len(documents) if isinstance(query, str) else query
        if isinstance(self._prompts, PairPrompts):
            if truncation.asked:
                raise bad_request("this model's queries and documents are never cut: send shorter ones")
            return await self._by_pairs(self._prompts, queries, documents, instruction, request_id)
        size = self._prompts.characters(queries, documents)
        make = partial(cut_prompts, self._prompts, queries, documents, instruction, truncation, self._limits)
        cut = await off_loop(partial(_made, make), size)
        was_cut = [document or cut.query for document in cut.documents]
        labels = self._prompts.label_ids
        if len(labels) == 2:
            return await self._by_labels(cut.prompts, labels, was_cut, request_id)
        # One label, whose logit is the score, or none.
        ranking = await self._by_logit(cut.prompts, request_id, labels)
        return replace(ranking, probabilities=_sigmoid(ranking.logits), cut=was_cut)

    async def _by_pairs(
        self,
        prompts: PairPrompts,
        queries: Sequence[str],
        documents: Sequence[str],
        instruction: str | None,
        request_id: str,
    ) -> Ranking:
        # An encoder's call has one query.
        rows_of: dict[str, list[int]] = {}
        for row, query in enumerate(queries):
            rows_of.setdefault(query, []).append(row)
        size = sum(map(len, rows_of)) + sum(map(len, documents)) + AROUND_A_PAIR * len(documents)

        def make() -> list[Prompts]:
            self._limits.check_characters(size)
            return [
                prompts.ids(query, [documents[row] for row in rows], instruction)
                for query, rows in rows_of.items()
            ]

        asked = await off_loop(partial(_made, make), size)
        found = await asyncio.gather(*(self._by_logit(each, request_id) for each in asked))
        logits = np.empty(len(documents))
        for rows, ranking in zip(rows_of.values(), found, strict=True):
            logits[rows] = ranking.logits
        return Ranking(
            _sigmoid(logits.tolist()),
            logits.tolist(),
            sum(ranking.prompt_tokens for ranking in found),
            sum(ranking.cached_tokens for ranking in found),
            [False] * len(documents),
        )

    async def _by_logit(self, prompts: Prompts, request_id: str, labels: Sequence[int] = ()) -> Ranking:
        """By one logit: of a label, or of a classifier or an encoder. Probabilities and cuts are not filled in."""
        result = await self._models.score_ids(
            prompts.query, prompts.items, labels, raw_logits=bool(labels), request_id=request_id
        )
        if (columns := result.scores.shape[1]) != 1:
            raise bad_request(f"this model is a classifier of {columns} labels, none of which is relevance")
        logits = result.scores[:, 0].tolist()
        return Ranking([], logits, result.usage.prompt_tokens, result.usage.cached_tokens, [])

    async def _by_labels(
        self, prompts: Prompts, labels: Sequence[int], cut: list[bool], request_id: str
    ) -> Ranking:
        result = await self._models.score_ids(
            prompts.query, prompts.items, labels, apply_softmax=True, request_id=request_id
        )
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(result.scores.astype(np.float64)), MIN_LOG)
        return Ranking(
            result.scores[:, 0].tolist(),
            (logs[:, 0] - logs[:, 1]).tolist(),
            result.usage.prompt_tokens,
            result.usage.cached_tokens,
            cut,
        )


def _sigmoid(logits: Sequence[float]) -> list[float]:
    values: list[float] = (0.5 * (1 + np.tanh(np.array(logits) / 2))).tolist()
    return values


def _made(make: Callable[[], Made]) -> Made:
    """Prompts of callers' texts; what is wrong with these is the callers' error."""
    try:
        return make()
    except CannotEncode as error:
        raise bad_request(f"a query or a document cannot be encoded: {error}") from None
    except (PromptError, TooMuchText) as error:
        raise bad_request(str(error)) from None


def check_documents(documents: Sequence[object], param: str) -> None:
    """Refuse a request without documents.

    Raises:
        ApiError: There are none.
    """
    if not documents:
        raise ApiError(400, f"'{param}' is empty: at least one is needed", param)
