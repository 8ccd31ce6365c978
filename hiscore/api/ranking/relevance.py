"""The relevance of documents to a query, by labels of a causal LM, by a logit, or by an encoder's pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.api.http.encoding import prompted
from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models, few_at_once
from hiscore.api.wire import ModelCall
from hiscore.prompts.listwise import Blocks, ListwisePrompts
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.recipe import Recipe
from hiscore.prompts.rerank import RerankPrompts
from hiscore.prompts.token_limits import NOTHING, TokenLimits, Truncation
from hiscore.prompts.truncation import cut_prompts
from hiscore_client import ScoreResult


@dataclass(frozen=True)
class Ranking:
    """The documents of a call.

    Attributes:
        scores: One per document: what the checkpoint's activation makes of its logit.
        logits: Of relevance; of one label of several log(p / (1 - p)).
        prompt_tokens: Tokens of all prompts, those that they share counted once.
        cut: True of each document that was cut, or whose query was.
    """

    scores: list[float]
    logits: list[float]
    prompt_tokens: int
    cached_tokens: int
    cut: list[bool]

    @property
    def probabilities(self) -> list[float]:
        """The logits' sigmoids, whatever the checkpoint's own activation is."""
        return _sigmoid(self.logits)

    def best(self, top_n: int | None) -> list[int]:
        """Give the indices of the most relevant documents, best first; equal ones keep their order."""
        order = sorted(range(len(self.logits)), key=lambda index: -self.logits[index])
        return order[:top_n]


class Ranker:
    """Ranks documents within `limits` by the prompts of a checkpoint; without any it refuses to, and says why."""

    def __init__(
        self,
        models: Models,
        limits: TokenLimits,
        prompts: RerankPrompts | PairPrompts | ListwisePrompts | None = None,
        recipe: Recipe | None = None,
        refusal: str = "",
    ) -> None:
        self._models, self._limits, self._prompts, self._refusal = models, limits, prompts, refusal
        self.warnings = recipe.warnings if recipe else []
        self._column = recipe.column if recipe else 0
        self._activation = recipe.activation.value if recipe else "Identity"
        self._longest = (recipe.longest if recipe else None) or limits.context

    @property
    def context_length(self) -> int:
        """Tokens to which a prompt is cut where a request leaves the number to the model."""
        return min(self._limits.context, self._longest)

    def most(self, asked: int | None) -> int | None:
        """Tokens to which a prompt is cut, -1 being what the model takes; None: it is not."""
        return self.context_length if asked == -1 else asked

    async def rank(
        self,
        query: str | Sequence[str],
        documents: Sequence[str],
        call: ModelCall,
        instruction: str | None = None,
        truncation: Truncation = NOTHING,
        param: str = "documents",
    ) -> Ranking:
        """Score documents (`param`), at least one, for one query or a query each; pairs in a call for each query.

        The `instruction` says what relevant means; None: the template's own.
        """
        if not documents:
            raise bad_request(f"'{param}' is empty: at least one is needed", param)
        if (prompts := self._prompts) is None:
            raise bad_request(self._refusal)
        queries = [query] * len(documents) if isinstance(query, str) else query
        if isinstance(prompts, ListwisePrompts):
            if len(set(queries)) > 1:
                raise bad_request("this model ranks the documents of one query: send one")
            make_blocks = partial(
                prompts.blocks, queries[0], documents, instruction, truncation, self._limits
            )
            size = sum(map(len, documents))
            if call.adapter:
                raise bad_request("this model ranks documents together: by no adapter", "model")
            return await self._rank_blocks(await prompted(make_blocks, size, "a text"), call)
        make = partial(cut_prompts, prompts, queries, documents, instruction, truncation, self._limits)
        size = prompts.characters(queries, documents)
        made = await prompted(make, size, "a query or a document")
        labels, lengths = prompts.label_ids, prompts.label_lengths
        # The logits of two labels differ as the logarithms of their probabilities do.
        options: dict[str, Any] = {"raw_logits": bool(labels)}
        if lengths is not None:
            options = {"label_lengths": lengths, "log_scores": True}
        score = partial(self._models.score_ids, request_id=call.id, adapter=call.adapter, **options)
        found = await few_at_once([partial(score, *each, labels) for _, each in made.prompts])
        logits = np.empty(len(documents))
        for (rows, _), result in zip(made.prompts, found, strict=True):
            logits[rows] = self._logits(result, len(lengths or labels))
        return Ranking(
            ACTIVATIONS[self._activation](logits.tolist()),
            logits.tolist(),
            sum(result.usage.prompt_tokens for result in found),
            sum(result.usage.cached_tokens for result in found),
            made.cut,
        )

    async def _rank_blocks(self, blocks: Blocks, call: ModelCall) -> Ranking:
        """Rank documents that see each other, by the cosine of each to the mean of all blocks' queries."""
        score = partial(self._models.score_ids, [], labels=[], request_id=call.id)
        found = await few_at_once([partial(score, [ids], places=places) for ids, places in blocks.prompts])
        rows = [np.asarray(each.place_values, np.float64) for each in found]
        units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in rows]
        # As published: a block's query counts by how well its best document fits.
        weights = [(1 + (each[:-1] @ each[-1]).max()) / 2 for each in units]
        mean = np.average([each[-1] for each in rows], axis=0, weights=weights)
        cosines = (np.concatenate([each[:-1] for each in units]) @ (mean / np.linalg.norm(mean))).tolist()
        tokens = sum(each.usage.prompt_tokens for each in found)
        return Ranking(cosines, cosines, tokens, sum(each.usage.cached_tokens for each in found), blocks.cut)

    def _logits(self, result: ScoreResult, labels: int) -> npt.NDArray[np.float64]:
        """Read one logit of each item: a label's, of two the difference, or that of a classifier or an encoder."""
        scores = result.scores.astype(np.float64)
        logits, others = scores[:, self._column], np.delete(scores, self._column, axis=1)
        if labels == 2 or self._activation == "Softmax":
            logits = logits - np.logaddexp.reduce(others, axis=1)
        return logits


def _sigmoid(logits: Sequence[float]) -> list[float]:
    values: list[float] = (0.5 * (1 + np.tanh(np.array(logits) / 2))).tolist()
    return values


ACTIVATIONS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {
    "Sigmoid": _sigmoid,
    "Softmax": _sigmoid,
    "Identity": list,
    "Tanh": lambda logits: np.tanh(logits).tolist(),
    "ReLU": lambda logits: np.maximum(logits, 0).tolist(),
}
