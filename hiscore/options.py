"""The request parameters of ``score``, ``tokenizer`` and ``scorer``.

They are parameters and not tensors, so that calls with different options still share a batch. Each of the
three models accepts all of them, since an ensemble forwards them to its steps; an unknown one is refused.
"""

import json
import math
from dataclasses import dataclass

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
    given: dict[str, object] = json.loads(parameters) if parameters else {}
    unknown = sorted(set(given) - {"apply_softmax", "temperature", "item_first"})
    if unknown:
        raise RequestError(
            f"unknown parameter '{unknown[0]}': known are apply_softmax, temperature and item_first"
        )
    options = ScoreOptions(
        apply_softmax=_flag(given, "apply_softmax"),
        temperature=_temperature(given.get("temperature", 1.0)),
        item_first=_flag(given, "item_first"),
    )
    if options.temperature != 1.0 and not options.apply_softmax:
        raise RequestError(
            f"parameter 'temperature' is {options.temperature}: other values than 1.0 need apply_softmax"
        )
    return options


def _flag(given: dict[str, object], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' must be true or false, not {value!r}")
    return value


def _temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"parameter 'temperature' must be a number, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"parameter 'temperature' must be finite and greater than 0, not {value}")
    return float(value)
