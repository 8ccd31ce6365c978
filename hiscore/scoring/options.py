"""The request parameters of ``score``, ``tokenizer`` and ``scorer``.

They are parameters and not tensors, so that calls with different options still share a batch. Each of the
three models accepts all of them, since an ensemble forwards them to its steps; an unknown one is refused.
"""

from dataclasses import dataclass, fields

from hiscore.errors import RequestError
from hiscore.parameters import flag, known_only, number


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
