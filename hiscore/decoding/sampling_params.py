"""The request parameters of `decode`. An unknown one is refused."""

import json
import reprlib
import secrets
from dataclasses import dataclass, fields

from hiscore.errors import RequestError
from hiscore.parameters import flag, known_only, number

INT32_MAX = 2**31 - 1
# Stop strings are searched on the thread that serves every sequence, so the work for one request is bounded.
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 1024


@dataclass(frozen=True)
class SamplingParams:
    """How a sequence is sampled and when it ends.

    Attributes:
        max_tokens: Most tokens to generate.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        seed: Drawn at random if the request gives none.
        ignore_eos: The model's own end tokens do not end the sequence.
        stop: Strings that end it.
        stop_token_ids: Tokens that end it.
        sparse: False attends to everything, whatever the server selects by default.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    sparse: bool = True


def parse_sampling_params(parameters: str) -> SamplingParams:
    """Validate a request's parameters.

    Args:
        parameters: A JSON object, or an empty string.

    Raises:
        RequestError: An unknown parameter, a wrong type, or a value out of its bounds.
    """
    default = SamplingParams()
    given = known_only(parameters, [field.name for field in fields(default)])
    top_p = number("top_p", given.get("top_p", default.top_p))
    if not 0 < top_p <= 1:
        raise RequestError(f"parameter 'top_p' must be greater than 0 and at most 1, not {top_p}")
    temperature = number("temperature", given.get("temperature", default.temperature))
    if temperature < 0:
        raise RequestError(f"parameter 'temperature' must be at least 0, not {temperature}")
    return SamplingParams(
        max_tokens=_integer("max_tokens", given.get("max_tokens", default.max_tokens), 1, INT32_MAX),
        temperature=temperature,
        top_k=_integer("top_k", given.get("top_k", default.top_k), 0, INT32_MAX),
        top_p=top_p,
        seed=_integer("seed", given.get("seed", secrets.randbits(63)), -(2**63), 2**63 - 1),
        ignore_eos=flag("ignore_eos", given.get("ignore_eos", default.ignore_eos)),
        stop=_strings("stop", given.get("stop", "[]")),
        stop_token_ids=_ids("stop_token_ids", given.get("stop_token_ids", "[]")),
        sparse=flag("sparse", given.get("sparse", default.sparse)),
    )


def _integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"parameter '{name}' must be an integer, not {reprlib.repr(value)}")
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise RequestError(f"parameter '{name}' must be {bound}, not {reprlib.repr(value)}")
    return value


def _list(name: str, value: object, most: int, of: str) -> list[object]:
    wanted = f"parameter '{name}' must be a string that holds a JSON list of {of}"
    if not isinstance(value, str):
        raise RequestError(f"{wanted}, not {reprlib.repr(value)}")
    try:
        entries = json.loads(value)
    except (ValueError, RecursionError):
        raise RequestError(f"{wanted}, not {reprlib.repr(value)}") from None
    if not isinstance(entries, list):
        raise RequestError(f"{wanted}, not {reprlib.repr(value)}")
    if len(entries) > most:
        raise RequestError(f"parameter '{name}' has {len(entries)} entries: at most {most}")
    return entries


def _strings(name: str, value: object) -> tuple[str, ...]:
    stops = []
    for entry in _list(name, value, MAX_STOPS, "non-empty strings"):
        if not isinstance(entry, str) or not entry:
            raise RequestError(f"parameter '{name}' holds {reprlib.repr(entry)}: not a non-empty string")
        if len(entry) > MAX_STOP_CHARACTERS:
            bound = f"{len(entry)} characters: at most {MAX_STOP_CHARACTERS}"
            raise RequestError(f"parameter '{name}' holds a string of {bound}")
        stops.append(entry)
    return tuple(stops)


def _ids(name: str, value: object) -> frozenset[int]:
    ids = set()
    for entry in _list(name, value, MAX_STOP_TOKENS, "token ids"):
        if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry <= INT32_MAX:
            raise RequestError(f"parameter '{name}' holds {reprlib.repr(entry)}: not a token id")
        ids.add(entry)
    return frozenset(ids)
