"""``structured_outputs`` of vLLM: the schema, expression, grammar or choices that an answer must follow."""

import json
import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import bad_request
from hiscore.api.wire import SOME

MAX_GRAMMAR = 2**16
"""Characters, as `decode` checks them, too."""
Grammar: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)]
FIELD = "structured_outputs"
# Regular expressions that no grammar follows: those that look around or back.
BEYOND = re.compile(r"\(\?<?[=!]|\\[bB1-9]|\\k<")
# Of llguidance.
LENIENT = {"lenient": True}
VALUES = ("const", "default", "enum", "examples")


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of the first five."""

    json: dict[str, Any] | Grammar | None = None
    regex: Grammar | None = None
    choice: Annotated[list[Annotated[str, Meta(min_length=1)]], SOME] | None = None
    grammar: Grammar | None = None
    json_object: Literal[True] | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None


def confinement(wanted: StructuredOutputs) -> dict[str, str]:
    """Return the parameter of `decode`, by its name; raises `ApiError` if there is not exactly one."""
    given = {
        name: value
        for name in ("json", "regex", "choice", "grammar", "json_object")
        if (value := getattr(wanted, name)) is not None
    }
    if len(given) != 1:
        raise bad_request(f"'{FIELD}' needs exactly one of its fields, not {len(given)}", FIELD)
    match given:
        case {"regex": regex}:
            return {"regex": regex}
        case {"grammar": grammar}:
            return {"ebnf": grammar}
        case {"choice": choice}:
            return {"regex": _any_of(choice)}
        case {"json": str(schema)}:
            return {"json_schema": schema}
        case {"json": schema}:
            return {"json_schema": json.dumps(schema)}
    return {"json_schema": json.dumps({"type": "object"})}


def for_grammar(schema: dict[str, Any], strict: bool) -> dict[str, Any]:
    """Write a schema for llguidance: unless `strict`, it leaves out keywords, formats and patterns beyond it."""
    return schema if strict else {**_without_patterns(schema), "x-guidance": LENIENT}


def _without_patterns(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: each if name in VALUES else _without_patterns(each)
        for name, each in schema.items()
        if not (name == "pattern" and isinstance(each, str) and BEYOND.search(each))
    }


def _any_of(choices: list[str]) -> str:
    if not choices:
        raise bad_request(f"'{FIELD}.choice' is empty: at least one is needed", f"{FIELD}.choice")
    found = "|".join("".join(map(_literal, each)) for each in choices)
    if len(found) > MAX_GRAMMAR:
        raise bad_request(
            f"'{FIELD}.choice' makes an expression of {len(found)} characters: at most {MAX_GRAMMAR}",
            f"{FIELD}.choice",
        )
    return found


def _literal(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):x}}}"
