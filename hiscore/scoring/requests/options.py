"""The request parameters of `score`, `tokenizer` and `scorer`.

They are parameters and not tensors, so that requests with different options still share a batch. Each of the three
models accepts all of them, since an ensemble forwards them to its step; unknown ones are refused.
"""

import json
import reprlib
from dataclasses import dataclass, fields
from functools import lru_cache

from hiscore.errors import RequestError
from hiscore.parameters import flag, known_only, number

MOST_KEPT = 256
"""Parameters that stay parsed: callers send the same few again and again."""
LONGEST_KEPT = 256
"""Characters; longer ones are parsed each time."""


@dataclass(frozen=True)
class ScoreOptions:
    """The way from a request's logits to its scores, and of joining its texts.

    Attributes:
        apply_softmax: Softmax over the labels. Otherwise a score is a probability over the whole vocabulary, or a
            classifier's raw logit.
        temperature: Divides the logits; any value but 1.0 needs `apply_softmax`.
        item_first: Join ``item + query``; no effect on token ids.
        label_counts: Number of each item's own labels, in turn; None: all items share all labels.
        raw_logits: Scores are the labels' logits, as a classifier's always are without `apply_softmax`.
    """

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    label_counts: tuple[int, ...] | None = None
    raw_logits: bool = False


def parse_options(parameters: str) -> ScoreOptions:
    """Parse what ``request.parameters()`` returns: a JSON object, or an empty string.

    Raises:
        RequestError: An unknown parameter, a wrong type, or a value that is not allowed.
    """
    return (_kept if len(parameters) <= LONGEST_KEPT else _parse)(parameters)


def _parse(parameters: str) -> ScoreOptions:
    default = ScoreOptions()
    given = known_only(parameters, [field.name for field in fields(default)])
    options = ScoreOptions(
        apply_softmax=flag("apply_softmax", given.get("apply_softmax", default.apply_softmax)),
        temperature=number("temperature", given.get("temperature", default.temperature)),
        label_counts=_counts(given.get("label_counts")),
        item_first=flag("item_first", given.get("item_first", default.item_first)),
        raw_logits=flag("raw_logits", given.get("raw_logits", default.raw_logits)),
    )
    if options.temperature <= 0:
        raise RequestError(f"parameter 'temperature' must be greater than 0, not {options.temperature}")
    if options.raw_logits and options.apply_softmax:
        raise RequestError("parameters 'raw_logits' and 'apply_softmax' exclude each other")
    if options.temperature != 1.0 and not options.apply_softmax:
        raise RequestError(
            f"parameter 'temperature' is {options.temperature}: other values than 1.0 need apply_softmax"
        )
    return options


_kept = lru_cache(MOST_KEPT)(_parse)


def _counts(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        counts = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        counts = None
    if not isinstance(counts, list) or set(map(type, counts)) - {int}:
        raise RequestError(
            "parameter 'label_counts' must be a string that holds a JSON list of integers, not "
            f"{reprlib.repr(value)}"
        )
    if counts and min(counts) < 1:
        at = counts.index(min(counts))
        raise RequestError(
            f"parameter 'label_counts' gives item {at} {counts[at]} labels: at least 1 is needed"
        )
    return tuple(counts)
