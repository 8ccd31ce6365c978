"""The request parameters of ``score``, ``tokenizer`` and ``scorer``.

They are parameters and not tensors, so that calls with different options still share a batch. Each of the
three models accepts all of them, since an ensemble forwards them to its steps; an unknown one is refused.
"""

import json
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

from hiscore.errors import RequestError


@dataclass(frozen=True)
class ScoreOptions:
    """How a call's logits become scores, and in which order its texts are joined."""

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False


def parse_options(parameters: str) -> ScoreOptions:
    """Read the options from ``request.parameters()``, a JSON object (or an empty string).

    Raises:
        RequestError: an unknown parameter, a wrong type, or a temperature that is not allowed.
    """
    default = ScoreOptions()
    given = known_only(parameters, [field.name for field in fields(default)])
    options = ScoreOptions(
        apply_softmax=flag("apply_softmax", given.get("apply_softmax", default.apply_softmax)),
        temperature=number("temperature", given.get("temperature", default.temperature)),
        item_first=flag("item_first", given.get("item_first", default.item_first)),
    )
    if options.temperature <= 0:
        raise RequestError(f"parameter 'temperature' must be greater than 0, not {options.temperature}")
    if options.temperature != 1.0 and not options.apply_softmax:
        raise RequestError(
            f"parameter 'temperature' is {options.temperature}: other values than 1.0 need apply_softmax"
        )
    return options


# A message travels in a header of gRPC's, and one that is too long arrives as another error: values are shortened.


def known_only(parameters: str, known: Sequence[str]) -> dict[str, object]:
    """The parameters of a request by name, none of which is unknown."""
    given: dict[str, object] = json.loads(parameters) if parameters else {}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise RequestError(f"unknown parameter '{unknown[0][:64]}': known are {', '.join(known)}")
    return given


def flag(name: str, value: object) -> bool:
    """A parameter that must be true or false."""
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' must be true or false, not {reprlib.repr(value)}")
    return value


def number(name: str, value: object) -> float:
    """A parameter that must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"parameter '{name}' must be a number, not {reprlib.repr(value)}")
    try:
        read = float(value)
    except OverflowError:  # an integer beyond every float
        read = math.inf
    if not math.isfinite(read):  # JSON as Python reads it has NaN and Infinity
        raise RequestError(f"parameter '{name}' must be finite, not {reprlib.repr(value)}")
    return read
