"""The options of a scoring call, and what they are for some of its items."""

import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from hiscore_client.errors import InvalidRequest

Places: TypeAlias = Sequence[int] | Literal["all"] | None


class LabelOptions(TypedDict, total=False):
    """Options of labels that have several tokens.

    Attributes:
        label_lengths: How many of the label token ids are each label, in turn; by default one.
        log_scores: Return logarithms, which do not underflow.
        normalize: Divide a label's logarithm by its number of ``"tokens"`` or, of a text, of ``"bytes"``.
        adapter: Name of the adapter by which all items are computed; by default none, the model itself.
        item_adapters: A name for each item in its place; "" is the model itself.
        token_logprobs: Of `score_ids`: return `ScoreResult.tokens`, with so many of the likeliest tokens.
    """

    label_lengths: Sequence[int] | None
    log_scores: bool
    normalize: str
    adapter: str
    item_adapters: Sequence[str] | None
    token_logprobs: int | None


@dataclass(frozen=True)
class ScoreOptions:
    """Options of a call; those at their default are not sent."""

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    priority: int = 0
    label_counts: Sequence[int] | None = None
    raw_logits: bool = False
    label_lengths: Sequence[int] | None = None
    log_scores: bool = False
    normalize: str = "none"
    adapter: str = ""
    item_adapters: Sequence[str] | None = None
    token_logprobs: int | None = None
    places: Places = None

    def __post_init__(self) -> None:
        for name in ("label_counts", "label_lengths"):
            if (given := getattr(self, name)) is not None:
                # NumPy's integers are none that JSON can have.
                object.__setattr__(self, name, tuple(map(operator.index, given)))

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
        for name in ("apply_softmax", "raw_logits", "item_first", "log_scores"):
            if getattr(self, name):
                given[name] = True
        if self.temperature != 1.0:
            given["temperature"] = float(self.temperature)
        if self.label_counts is not None:
            given["label_counts"] = json.dumps(self.label_counts[chunk])
        if self.label_lengths is not None:
            given["label_lengths"] = json.dumps(self.label_lengths[self.labels_of(chunk)])
        if self.adapter:
            given["adapter"] = self.adapter
        if self.item_adapters is not None:
            given["item_adapters"] = json.dumps(list(self.item_adapters)[chunk])
        if self.normalize != "none":
            given["normalize"] = self.normalize
        if self.token_logprobs is not None:
            given["token_logprobs"] = self.token_logprobs
        if self.places is not None:
            given["places"] = (
                "all" if self.places == "all" else json.dumps([operator.index(each) for each in self.places])
            )
        return given

    def labels_of(self, chunk: slice) -> slice:
        """Which of the call's labels belong to some of the items."""
        if self.label_counts is None:
            return slice(None)
        return slice(sum(self.label_counts[: chunk.start]), sum(self.label_counts[: chunk.stop]))

    def ids_of(self, chunk: slice) -> slice:
        """Which of the call's label token ids belong to some of the items."""
        labels, lengths = self.labels_of(chunk), self.label_lengths
        if lengths is None or self.label_counts is None:
            return labels
        return slice(sum(lengths[: labels.start]), sum(lengths[: labels.stop]))

    def count(self, label_token_ids: int) -> int:
        """Count the labels that have so many tokens together.

        Raises:
            InvalidRequest: `label_lengths` does not add up to them.
        """
        if self.label_lengths is None:
            return label_token_ids
        if sum(self.label_lengths) != label_token_ids:
            raise InvalidRequest(
                f"'label_lengths' adds up to {sum(self.label_lengths)}, but {label_token_ids} tokens were given"
            )
        return len(self.label_lengths)

    def columns(self, chunk: slice, labels: int) -> int:
        """Columns of the scores of some of the items."""
        return labels if self.label_counts is None else max(self.label_counts[chunk], default=0)

    def check_counts(self, items: int, labels: int) -> None:
        """Check that `label_counts` fits the call.

        Raises:
            InvalidRequest: It does not.
        """
        counts, names = self.label_counts, self.item_adapters
        if names is not None and len(names) != items:
            raise InvalidRequest(f"'item_adapters' holds {len(names)} names for {items} items")
        if counts is None:
            return
        if any(count < 1 for count in counts):
            raise InvalidRequest(f"'label_counts' must be integers of at least 1: {list(counts[:20])}")
        if len(counts) != items:
            raise InvalidRequest(f"'label_counts' holds {len(counts)} numbers for {items} items")
        if sum(counts) != labels:
            raise InvalidRequest(f"'label_counts' adds up to {sum(counts)}, but {labels} labels were given")
