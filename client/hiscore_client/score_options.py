"""The options of a scoring call, and what they are for some of its items."""

import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from hiscore_client.errors import InvalidRequest


@dataclass(frozen=True)
class ScoreOptions:
    """Options of a call; those at their default are not sent."""

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    priority: int = 0
    label_counts: Sequence[int] | None = None
    raw_logits: bool = False

    def __post_init__(self) -> None:
        if self.label_counts is not None:
            # NumPy's integers are none that JSON can have.
            object.__setattr__(self, "label_counts", tuple(map(operator.index, self.label_counts)))

    def parameters(self, chunk: slice = slice(None)) -> dict[str, bool | float | str]:
        """The request parameters for some of the items.

        Raises:
            InvalidRequest: A temperature that Triton cannot pass on, or a negative priority.
        """
        # Triton hands parameters to a model as JSON, which has no NaN.
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequest(f"'temperature' must be finite and greater than 0, not {self.temperature}")
        if self.priority < 0:
            raise InvalidRequest(f"'priority' must be at least 0, not {self.priority}")
        given: dict[str, bool | float | str] = {}
        if self.apply_softmax:
            given["apply_softmax"] = True
        if self.temperature != 1.0:
            given["temperature"] = float(self.temperature)
        if self.raw_logits:
            given["raw_logits"] = True
        if self.item_first:
            given["item_first"] = True
        if self.label_counts is not None:
            given["label_counts"] = json.dumps(self.label_counts[chunk])
        return given

    def labels_of(self, chunk: slice) -> slice:
        """Which of the call's labels belong to some of the items."""
        if self.label_counts is None:
            return slice(None)
        return slice(sum(self.label_counts[: chunk.start]), sum(self.label_counts[: chunk.stop]))

    def columns(self, chunk: slice, labels: int) -> int:
        """Columns of the scores of some of the items."""
        return labels if self.label_counts is None else max(self.label_counts[chunk], default=0)

    def check_counts(self, items: int, labels: int) -> None:
        """Check that `label_counts` fits the call.

        Raises:
            InvalidRequest: It does not.
        """
        counts = self.label_counts
        if counts is None:
            return
        if any(count < 1 for count in counts):
            raise InvalidRequest(f"'label_counts' must be integers of at least 1: {list(counts[:20])}")
        if len(counts) != items:
            raise InvalidRequest(f"'label_counts' holds {len(counts)} numbers for {items} items")
        if sum(counts) != labels:
            raise InvalidRequest(f"'label_counts' adds up to {sum(counts)}, but {labels} labels were given")
