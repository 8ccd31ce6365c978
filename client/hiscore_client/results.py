"""Results of a scoring call."""

from collections.abc import Sequence
from dataclasses import dataclass
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
class ScoreResult:
    """Result of a scoring call.

    Args:
        scores: float32 [items, labels], in the order of the call.
        request_id: Identifies the call in the server's log.
    """

    scores: Scores
    usage: Usage
    request_id: str


def parse_result(answer: Any, items: int, labels: int | None, request_id: str) -> ScoreResult:
    """Read and check the outputs of one request.

    Args:
        answer: A ``ModelInferResponse``.
        labels: Number of labels sent; None for a classifier, which has its own.

    Raises:
        ServerFault: The outputs do not have the promised shapes and types.
    """
    scores = numbers_of(answer, "scores")
    usage = numbers_of(answer, "usage")
    if scores.dtype != np.float32 or scores.ndim != 3 or scores.shape[:2] != (1, items):
        received = f"{scores.dtype} {list(scores.shape)}"
        raise ServerFault(f"'scores' is {received} for {items} items: expected float32 [1, {items}, labels]")
    if labels is not None and scores.shape[2] != labels:
        raise ServerFault(f"'scores' has {scores.shape[2]} columns for {labels} labels")
    if usage.dtype != np.int32 or usage.shape != (1, 2):
        raise ServerFault(f"'usage' is {usage.dtype} {list(usage.shape)}: expected int32 [1, 2]")
    return ScoreResult(scores[0], Usage(int(usage[0, 0]), int(usage[0, 1])), request_id)


def merge_chunks(chunks: Sequence[ScoreResult], request_id: str, pad: bool = False) -> ScoreResult:
    """Concatenate the results of a call's chunks; the scores are a writable copy.

    Args:
        pad: Fill up rows with 0 where chunks have fewer columns than others.

    Raises:
        ServerFault: The chunks have different numbers of labels.
    """
    if len(chunks) == 1:
        return ScoreResult(chunks[0].scores.copy(), chunks[0].usage, request_id)
    widths = {chunk.scores.shape[1] for chunk in chunks}
    if pad:
        chunks = [_widened(chunk, max(widths)) for chunk in chunks]
    elif len(widths) > 1:
        raise ServerFault(f"'scores' came back with {sorted(widths)} columns for one call")
    usage = Usage(
        sum(chunk.usage.prompt_tokens for chunk in chunks), sum(chunk.usage.cached_tokens for chunk in chunks)
    )
    return ScoreResult(np.concatenate([chunk.scores for chunk in chunks]), usage, request_id)


def _widened(chunk: ScoreResult, columns: int) -> ScoreResult:
    scores = np.pad(chunk.scores, ((0, 0), (0, columns - chunk.scores.shape[1])))
    return ScoreResult(scores, chunk.usage, chunk.request_id)
