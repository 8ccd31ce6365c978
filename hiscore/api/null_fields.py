"""Fields that are null: they say no more than if they were left out, even if nobody knows them."""

from collections.abc import Mapping
from typing import Any

import msgspec

NULL = b"null"


def is_given(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether an object has this field, and more in it than null."""
    return name in fields and bytes(fields[name]) != NULL


def without_unknown_nulls(fields: dict[str, msgspec.Raw], request_type: Any) -> dict[str, msgspec.Raw]:
    """A body's fields without those that a request of this type does not know and that are null."""
    known = {field.encode_name for field in msgspec.structs.fields(request_type)}
    return {name: fields[name] for name in fields if name in known or is_given(fields, name)}
