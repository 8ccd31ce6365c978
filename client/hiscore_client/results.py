"""What comes back from a call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore_client.errors import ServerFault

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Usage:
    """Tokens that the server counted; a call sent as several chunks counts its query once per chunk."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """scores: float32 [items, labels], in the order of the call."""

    scores: Scores
    usage: Usage
    request_id: str


def read_result(answer: Any, items: int, labels: int | None, request_id: str) -> ScoreResult:
    """Read the outputs of one request, a ``tritonclient.grpc.InferResult``; labels: None if the model has them.

    Raises:
        ServerFault: the outputs do not have the promised shapes and types.
    """
    scores = _output(answer, "scores")
    usage = _output(answer, "usage")
    if scores.dtype != np.float32 or scores.ndim != 3 or scores.shape[:2] != (1, items):
        found = f"{scores.dtype} {list(scores.shape)}"
        raise ServerFault(f"'scores' is {found} for {items} items: expected float32 [1, {items}, labels]")
    if labels is not None and scores.shape[2] != labels:
        raise ServerFault(f"'scores' has {scores.shape[2]} columns for {labels} labels")
    if usage.dtype != np.int32 or usage.shape != (1, 2):
        raise ServerFault(f"'usage' is {usage.dtype} {list(usage.shape)}: expected int32 [1, 2]")
    return ScoreResult(scores[0], Usage(int(usage[0, 0]), int(usage[0, 1])), request_id)


def merge(parts: Sequence[ScoreResult], request_id: str) -> ScoreResult:
    """Put the chunks of one call together, in their order; the scores are a copy that may be written to."""
    widths = {part.scores.shape[1] for part in parts}
    if len(widths) > 1:
        raise ServerFault(f"'scores' came back with {sorted(widths)} columns for one call")
    usage = Usage(
        sum(part.usage.prompt_tokens for part in parts), sum(part.usage.cached_tokens for part in parts)
    )
    return ScoreResult(np.concatenate([part.scores for part in parts]), usage, request_id)


def _output(answer: Any, name: str) -> npt.NDArray[Any]:
    try:
        values: npt.NDArray[Any] | None = answer.as_numpy(name)
    except ValueError:
        raise ServerFault(f"'{name}' came back with a shape that does not fit its data") from None
    if values is None:
        raise ServerFault(f"the answer has no '{name}'")
    return values
