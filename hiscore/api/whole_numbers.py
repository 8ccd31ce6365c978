"""Integers that callers write as 16.0, which JSON Schema and other servers take for 16."""

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect


def takes_whole_numbers(error: msgspec.ValidationError) -> bool:
    """Whether a body that got this error may be one whose integers are written as floats."""
    return "got `float`" in str(error)


def with_integers(body: bytes, request_type: Any) -> bytes:
    """A body whose fields hold integers where they may, and had 16.0; other fields are left as they are.

    Args:
        body: A JSON object.
        request_type: What it is to be read as.

    Raises:
        msgspec.ValidationError: A field does not hold what it must.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name, kind in _integer_fields(request_type).items():
        raw = bytes(fields.get(name, b""))
        # Numbers in texts would be taken, too; a field that holds texts has no integers beside them.
        if not raw or b'"' in raw:
            continue
        try:
            value = msgspec.json.decode(raw, type=kind, strict=False)
        except msgspec.ValidationError as error:
            complaint, _, path = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{complaint} - at `$.{name}{path.rstrip('`')}`") from None
        fields[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields)


@cache
def _integer_fields(request_type: Any) -> dict[str, Any]:
    """The types of the fields that hold integers, alone or in lists."""
    info = inspect.type_info(request_type)
    if not isinstance(info, inspect.StructType):
        return {}
    types = {field.name: field.type for field in msgspec.structs.fields(request_type)}
    return {field.name: types[field.name] for field in info.fields if _holds_integers(field.type)}


def _holds_integers(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_holds_integers, kind.types))
    if isinstance(kind, inspect.Metadata):
        return _holds_integers(kind.type)
    if isinstance(kind, inspect.ListType):
        return _holds_integers(kind.item_type)
    return isinstance(kind, inspect.IntType)
