"""The relevance of documents to a query, by labels of a causal LM, by a logit, or by an encoder's pairs."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import ApiError, bad_request
from hiscore.api.models import Models
from hiscore.prompts.cannot_encode import CannotEncode
from hiscore.prompts.chat import PromptError
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.recipe import Recipe
from hiscore.prompts.rerank import RerankPrompts
from hiscore.prompts.shared_beginning import Prompts
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.prompts.truncation import NOTHING, CutPairs, CutPrompts, Truncation, cut_pairs, cut_prompts

Made = TypeVar("Made", CutPairs, CutPrompts)
# The logarithm of the smallest float32: a probability of 0 is one below it.
MIN_LOG = math.log(2.0**-149)
# Of one request at once, so that others find room in the models' queue.
MOST_CALLS = 64


@dataclass(frozen=True)
class Ranking:
    """The documents of a call.

    Attributes:
        probabilities: One per document, from 0 to 1.
        logits: log(p / (1 - p)) of each of these.
        prompt_tokens: Tokens of all prompts, those that they share counted once.
        cut: True of each document that was cut, or whose query was.
    """

    probabilities: list[float]
    logits: list[float]
    prompt_tokens: int
    cached_tokens: int
    cut: list[bool]

    def best(self, top_n: int | None) -> list[int]:
        """Give the indices of the most relevant documents, best first; equal ones keep their order."""
        order = sorted(range(len(self.logits)), key=lambda index: -self.logits[index])
        return order[:top_n]


@dataclass(frozen=True)
class RankedTexts:
    """The texts of a call: a query for each document."""

    queries: Sequence[str]
    documents: Sequence[str]
    instruction: str | None
    truncation: Truncation


class Ranker:
    """Ranks documents within `limits`; the base class refuses to, and says why."""

    def __init__(
        self, models: Models, limits: TokenLimits, refusal: str = "", recipe: Recipe | None = None
    ) -> None:
        self._models, self._limits, self._refusal = models, limits, refusal
        self.warnings = recipe.warnings if recipe else []
        self._column = recipe.column if recipe else 0

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
        """Score documents, at least one, for one query or a query each.

        The `instruction` says what relevant means; None: the template's own.
        """
        queries = [query] * len(documents) if isinstance(query, str) else query
        return await self._rank(RankedTexts(queries, documents, instruction, truncation), request_id)

    async def _rank(self, texts: RankedTexts, request_id: str) -> Ranking:
        raise bad_request(self._refusal)

    async def _by_logit(self, prompts: Prompts, request_id: str, labels: Sequence[int] = ()) -> Ranking:
        """Read one logit: a label's, or that of a classifier or an encoder."""
        result = await self._models.score_ids(
            prompts.query, prompts.items, labels, raw_logits=bool(labels), request_id=request_id
        )
        others = np.delete(result.scores.astype(np.float64), self._column, axis=1)
        logits = result.scores[:, self._column].tolist()
        if others.shape[1]:
            logits = (logits - np.logaddexp.reduce(others, axis=1)).tolist()
        uncut = [False] * len(logits)
        return Ranking(
            _sigmoid(logits), logits, result.usage.prompt_tokens, result.usage.cached_tokens, uncut
        )


class LogitRanker(Ranker):
    """Ranks by prompts with one label, whose logit is the score, or none: a classifier's."""

    def __init__(self, models: Models, limits: TokenLimits, prompts: RerankPrompts, recipe: Recipe) -> None:
        super().__init__(models, limits, recipe=recipe)
        self._prompts = prompts

    async def _rank(self, texts: RankedTexts, request_id: str) -> Ranking:
        size = self._prompts.characters(texts.queries, texts.documents)
        make = partial(
            cut_prompts,
            self._prompts,
            texts.queries,
            texts.documents,
            texts.instruction,
            texts.truncation,
            self._limits,
        )
        cut = await off_loop(partial(_made, make), size)
        ranking = await self._by_labels(cut.prompts, request_id, self._prompts.label_ids)
        return replace(ranking, cut=[document or cut.query for document in cut.documents])

    async def _by_labels(self, prompts: Prompts, request_id: str, labels: Sequence[int]) -> Ranking:
        return await self._by_logit(prompts, request_id, labels)


class LabelRanker(LogitRanker):
    """Ranks by prompts with two labels: the score is the probability of the first against the second."""

    async def _by_labels(self, prompts: Prompts, request_id: str, labels: Sequence[int]) -> Ranking:
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
            [False] * len(logs),
        )


class PairRanker(Ranker):
    """Ranks by pairs of texts without a prompt around them, in a call for each query."""

    def __init__(self, models: Models, limits: TokenLimits, prompts: PairPrompts, recipe: Recipe) -> None:
        super().__init__(models, limits, recipe=recipe)
        self._prompts = prompts

    @property
    def context_length(self) -> int:
        """Tokens that a pair may have if it is cut to what the checkpoint was made for."""
        return min(self._limits.context, self._prompts.longest)

    async def _rank(self, texts: RankedTexts, request_id: str) -> Ranking:
        given = texts.queries, texts.documents, texts.instruction, texts.truncation
        make = partial(cut_pairs, self._prompts, *given, self._limits)
        pairs = await off_loop(partial(_made, make), sum(map(len, texts.documents)))
        turns = asyncio.Semaphore(MOST_CALLS)

        async def ranked(prompts: Prompts) -> Ranking:
            async with turns:
                return await self._by_logit(prompts, request_id)

        calls = [asyncio.create_task(ranked(prompts)) for _, prompts in pairs.prompts]
        try:
            found = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
        logits = np.empty(len(texts.documents))
        for (rows, _), ranking in zip(pairs.prompts, found, strict=True):
            logits[rows] = ranking.logits
        return Ranking(
            _sigmoid(logits.tolist()),
            logits.tolist(),
            sum(ranking.prompt_tokens for ranking in found),
            sum(ranking.cached_tokens for ranking in found),
            pairs.cut,
        )


def make_ranker(
    models: Models, limits: TokenLimits, prompts: RerankPrompts | PairPrompts, recipe: Recipe
) -> Ranker:
    """Make the ranker for a checkpoint's prompts."""
    if isinstance(prompts, PairPrompts):
        return PairRanker(models, limits, prompts, recipe)
    by = LabelRanker if len(prompts.label_ids) == 2 else LogitRanker
    return by(models, limits, prompts, recipe)


def _sigmoid(logits: Sequence[float]) -> list[float]:
    values: list[float] = (0.5 * (1 + np.tanh(np.array(logits) / 2))).tolist()
    return values


def _made(make: Callable[[], Made]) -> Made:
    """Make prompts of callers' texts; a failure is the caller's."""
    try:
        return make()
    except CannotEncode as error:
        raise bad_request(f"a query or a document cannot be encoded: {error}") from None
    except (PromptError, TooMuchText) as error:
        raise bad_request(str(error)) from None


def check_documents(documents: Sequence[object], param: str) -> None:
    """Refuse a request without documents."""
    if not documents:
        raise ApiError(400, f"'{param}' is empty: at least one is needed", param)
