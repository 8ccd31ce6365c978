"""Results of a scoring call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hiscore_client.errors import ServerFault
from hiscore_client.inference import numbers_of

Scores: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Usage:
    """Tokens counted by the server; a call sent as several chunks counts its query once per chunk."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, eq=False)
class TokenLogprobs:
    """Values of the tokens of all items' labels, [tokens], and of the n likeliest, [tokens, n], best first.

    Ranks count from 1, the likeliest of the vocabulary.
    """

    logprobs: Scores
    ranks: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: Scores


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """Result of a scoring call.

    Args:
        scores: float32 [items, labels], in the order of the call; of a classifier of tokens [items, 0].
        request_id: Identifies the call in the server's log.
        tokens: Of the labels' tokens, if the call asked for them.
        places: int32 [places]: tokens of query and items at which a classifier was read; None: at none.
        place_values: float32 [places, labels].
    """

    scores: Scores
    usage: Usage
    request_id: str
    tokens: TokenLogprobs | None = None
    places: npt.NDArray[np.int32] | None = None
    place_values: Scores | None = None


def parse_result(answer: Any, items: int, labels: int | None, request_id: str) -> ScoreResult:
    """Read and check the outputs of one request.

    Args:
        answer: A ``ModelInferResponse``.
        labels: Number of labels sent; None for a classifier, which has its own.

    Raises:
        ServerFault: The outputs do not have the promised shapes and types.
    """
    given = {output.name for output in answer.outputs}
    values = [numbers_of(answer, name)[0] for name in ("places", "place_values") if name in given]
    of_tokens = len(values) == 2 and "scores" not in given
    scores = np.empty((1, items, 0), np.float32) if of_tokens else numbers_of(answer, "scores")
    usage = numbers_of(answer, "usage")
    if scores.dtype != np.float32 or scores.ndim != 3 or scores.shape[:2] != (1, items):
        received = f"{scores.dtype} {list(scores.shape)}"
        raise ServerFault(f"'scores' is {received} for {items} items: expected float32 [1, {items}, labels]")
    if labels is not None and scores.shape[2] != labels:
        raise ServerFault(f"'scores' has {scores.shape[2]} columns for {labels} labels")
    if usage.dtype != np.int32 or usage.shape != (1, 2):
        raise ServerFault(f"'usage' is {usage.dtype} {list(usage.shape)}: expected int32 [1, 2]")
    tokens = None
    if "token_logprobs" in given:
        names = ("logprobs", "ranks", "top_ids", "top_logprobs")
        tokens = TokenLogprobs(*(numbers_of(answer, f"token_{name}")[0] for name in names))
    return ScoreResult(scores[0], Usage(int(usage[0, 0]), int(usage[0, 1])), request_id, tokens, *values)


def merge_chunks(chunks: Sequence[ScoreResult], request_id: str, pad: bool = False) -> ScoreResult:
    """Concatenate the results of a call's chunks; the scores are a writable copy.

    Args:
        pad: Fill up rows with 0 where chunks have fewer columns than others.

    Raises:
        ServerFault: The chunks have different numbers of labels.
    """
    if len(chunks) == 1:
        return replace(chunks[0], scores=chunks[0].scores.copy(), request_id=request_id)
    widths = {chunk.scores.shape[1] for chunk in chunks}
    if pad:
        chunks = [_widened(chunk, max(widths)) for chunk in chunks]
    elif len(widths) > 1:
        raise ServerFault(f"'scores' came back with {sorted(widths)} columns for one call")
    usage = Usage(
        sum(chunk.usage.prompt_tokens for chunk in chunks), sum(chunk.usage.cached_tokens for chunk in chunks)
    )
    scores, tokens = np.concatenate([chunk.scores for chunk in chunks]), None
    if of_chunks := [chunk.tokens for chunk in chunks if chunk.tokens is not None]:
        parts = zip(*(vars(each).values() for each in of_chunks), strict=True)
        tokens = TokenLogprobs(*map(np.concatenate, parts))
    if not all(chunk.places is not None for chunk in chunks):
        return ScoreResult(scores, usage, request_id, tokens)
    # A call with values at places has no query, which chunks would have again.
    before = np.cumsum([0, *(chunk.usage.prompt_tokens for chunk in chunks)], dtype=np.int32)
    places = [chunk.places + first for chunk, first in zip(chunks, before, strict=False)]
    values = np.concatenate([chunk.place_values for chunk in chunks])
    return ScoreResult(scores, usage, request_id, tokens, np.concatenate(places), values)


def _widened(chunk: ScoreResult, columns: int) -> ScoreResult:
    scores = np.pad(chunk.scores, ((0, 0), (0, columns - chunk.scores.shape[1])))
    return ScoreResult(scores, chunk.usage, chunk.request_id, chunk.tokens)
