"""Checks of single values among the request parameters of `decode`; each message names the parameter."""

import reprlib
from typing import Any

from hiscore.errors import RequestError
from hiscore.parameters import entries, number

INT32_MAX = 2**31 - 1
# Stop strings are searched on the thread that serves every sequence, so the work for one request is bounded.
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256
# OpenAI's routes take 1,024, and add the one that ends a turn.
MAX_STOP_TOKENS = 1025
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_GRAMMAR_CHARACTERS = 2**16


def between(name: str, value: object, least: float, most: float | None) -> float:
    """Check that a parameter is a number between two bounds, both allowed; None: there is no upper one."""
    read = number(name, value)
    if read < least or (most is not None and read > most):
        bound = f"at least {least:g}" if most is None else f"at least {least:g} and at most {most:g}"
        raise RequestError(f"parameter '{name}' must be {bound}, not {read}")
    return read


def share(name: str, value: object) -> float:
    """Check that a parameter is a number greater than 0 and at most 1."""
    read = number(name, value)
    if not 0 < read <= 1:
        raise RequestError(f"parameter '{name}' must be greater than 0 and at most 1, not {read}")
    return read


def text(name: str, value: object) -> str:
    """Check that a parameter is valid Unicode, and neither empty nor too long to be a grammar."""
    if not isinstance(value, str) or not value:
        raise RequestError(f"parameter '{name}' must be a non-empty string, not {reprlib.repr(value)}")
    if len(value) > MAX_GRAMMAR_CHARACTERS:
        raise RequestError(
            f"parameter '{name}' holds {len(value)} characters: at most {MAX_GRAMMAR_CHARACTERS}"
        )
    if any("\ud800" <= character <= "\udfff" for character in value):  # JSON can escape half a character
        raise RequestError(f"parameter '{name}' is not valid Unicode: {reprlib.repr(value)}")
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """Check that a parameter is a JSON list of stop strings."""
    stops = []
    for entry in entries(name, value, list, "JSON list of non-empty strings", MAX_STOPS):
        if not isinstance(entry, str) or not entry:
            raise RequestError(f"parameter '{name}' holds {reprlib.repr(entry)}: not a non-empty string")
        if len(entry) > MAX_STOP_CHARACTERS:
            bound = f"{len(entry)} characters: at most {MAX_STOP_CHARACTERS}"
            raise RequestError(f"parameter '{name}' holds a string of {bound}")
        stops.append(entry)
    return tuple(stops)


def ids(name: str, value: object) -> frozenset[int]:
    """Check that a parameter is a JSON list of token ids."""
    tokens: list[Any] = entries(name, value, list, "JSON list of token ids", MAX_STOP_TOKENS)
    for entry in tokens:
        if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry <= INT32_MAX:
            raise RequestError(f"parameter '{name}' holds {reprlib.repr(entry)}: not a token id")
    return frozenset(tokens)


def biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    """Check that a parameter is a JSON object of token ids and what is added to their logits."""
    read = {}
    for token, bias in entries(name, value, dict, "JSON object of token ids and numbers", MAX_BIASES).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) <= INT32_MAX):
            raise RequestError(f"parameter '{name}' holds {reprlib.repr(token)}: not a token id")
        read[int(token)] = between(f"{name}' of '{token}", bias, -MAX_BIAS, MAX_BIAS)
    return tuple(read.items())
