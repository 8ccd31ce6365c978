"""Integers that callers write as 16.0, which JSON Schema and other servers take for 16."""

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect


def with_integers(fields: dict[str, msgspec.Raw], request_type: Any) -> dict[str, msgspec.Raw]:
    """A body's fields, with integers where they may be and were written as 16.0; others are left as they are.

    Args:
        fields: Of the body, by name.
        request_type: What it is to be read as.

    Raises:
        msgspec.ValidationError: A field does not hold what it must.
    """
    read = dict(fields)
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
        read[name] = msgspec.Raw(msgspec.json.encode(value))
    return read


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
