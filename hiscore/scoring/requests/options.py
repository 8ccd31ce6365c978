"""The request parameters of `score`, `tokenizer` and `scorer`.

They are parameters and not tensors, so that requests with different options still share a batch. Each of the three
models accepts all of them, since an ensemble forwards them to its step; unknown ones are refused.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal

from hiscore.errors import RequestError
from hiscore.parameters import entries, flag, integer, known_only, number

MOST_KEPT = 256
"""Parameters that stay parsed: callers send the same few again and again."""
NORMALIZERS = ("none", "tokens", "bytes")
MOST_TOP = 20
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
        places: Tokens of query and items at which the outputs of places are read, ascending; "all": at every one;
            None: at those that the checkpoint names, if any.
        raw_logits: Scores are the labels' logits, as a classifier's always are without `apply_softmax`.
        label_lengths: Number of tokens of each label; None: one each.
        log_scores: Scores are logarithms.
        normalize: A label's logarithm is divided by its number of tokens, or of UTF-8 bytes.
        adapter: The adapter of all items; empty: none.
        item_adapters: That of each item; None: `adapter` is of all.
        token_logprobs: Give each label token's log-probability and rank, and so many likeliest tokens; None: none.
    """

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    label_counts: tuple[int, ...] | None = None
    places: tuple[int, ...] | Literal["all"] | None = None
    raw_logits: bool = False
    label_lengths: tuple[int, ...] | None = None
    log_scores: bool = False
    normalize: str = "none"
    adapter: str = ""
    item_adapters: tuple[str, ...] | None = None
    token_logprobs: int | None = None


def parse_options(parameters: str) -> ScoreOptions:
    """Parse what ``request.parameters()`` returns: a JSON object, or an empty string; raises `RequestError`."""
    return (_kept if len(parameters) <= LONGEST_KEPT else _parse)(parameters)


def _parse(parameters: str) -> ScoreOptions:
    given = known_only(parameters, [*READERS])
    default = ScoreOptions()
    values: dict[str, Any] = {
        name: None if given[name] is getattr(default, name) is None else read(name, given[name])
        for name, read in READERS.items()
        if name in given
    }
    options = ScoreOptions(**values)
    if options.temperature <= 0:
        raise RequestError(f"parameter 'temperature' must be greater than 0, not {options.temperature}")
    others = ("apply_softmax", "log_scores", "label_lengths", "token_logprobs", "normalize")
    for other in others if options.raw_logits else ():
        if getattr(options, other) != getattr(default, other):
            raise RequestError(f"parameters 'raw_logits' and '{other}' exclude each other")
    if options.adapter and options.item_adapters is not None:
        raise RequestError("parameters 'adapter' and 'item_adapters' exclude each other")
    if options.temperature != 1.0 and not options.apply_softmax:
        raise RequestError(
            f"parameter 'temperature' is {options.temperature}: other values than 1.0 need apply_softmax"
        )
    return options


_kept = lru_cache(MOST_KEPT)(_parse)


def _counts(name: str, value: object, gives: str) -> tuple[int, ...]:
    counts = _integers(name, value)
    if counts and min(counts) < 1:
        at = counts.index(min(counts))
        raise RequestError(f"parameter '{name}' gives {gives.format(at, counts[at])}: at least 1 is needed")
    return tuple(counts)


def _integers(name: str, value: object) -> list[int]:
    found: list[int] = entries(name, value, list, "JSON list of integers", each=int)
    return found


def _names(name: str, value: object) -> tuple[str, ...]:
    return tuple(entries(name, value, list, "JSON list of names", each=str))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"parameter '{name}' must be a string, not {reprlib.repr(value)}")
    return value


def _places(name: str, value: object) -> tuple[int, ...] | Literal["all"]:
    if value == "all":
        return "all"
    places = _integers(name, value)
    if any(after <= before for before, after in pairwise([-1, *places])):
        raise RequestError(f"parameter '{name}' must ascend strictly, from 0 on")
    return tuple(places)


def _normalize(name: str, value: object) -> str:
    if value not in NORMALIZERS:
        raise RequestError(
            f"parameter '{name}' must be one of {', '.join(NORMALIZERS)}, not {reprlib.repr(value)}"
        )
    return str(value)


READERS: Mapping[str, Callable[[str, object], Any]] = {
    "apply_softmax": flag,
    "temperature": number,
    "item_first": flag,
    "label_counts": partial(_counts, gives="item {} {} labels"),
    "places": _places,
    "raw_logits": flag,
    "label_lengths": partial(_counts, gives="label {} {} tokens"),
    "log_scores": flag,
    "normalize": _normalize,
    "adapter": _text,
    "item_adapters": _names,
    "token_logprobs": partial(integer, least=0, most=MOST_TOP),
}
"""Readers of all parameters; a parameter that is None by default may be null."""
