"""Parts of wire formats that several families share."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import ApiError, bad_request

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Limit: TypeAlias = Annotated[int, Meta(ge=0)]
"""A number of documents or of tokens; 0: all, as vLLM has it."""
Ignored: TypeAlias = Any
"""A field that is accepted because it cannot change the result."""


def stated(**bounds: int) -> Meta:
    """Bounds, by their names in JSON schema, for the description of a field that its route checks itself."""
    return Meta(extra_json_schema=dict(bounds))


SOME = stated(minItems=1)


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all requests: a field that is not declared is refused by name."""

    model: str | None = None
    user: Ignored = None
    request_id: Ignored = None
    rid: Ignored = None
    priority: Ignored = None
    metadata: Ignored = None


class Usage(msgspec.Struct, kw_only=True):
    """Tokens, as OpenAI counts them."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int]


def usage(prompt_tokens: int, cached_tokens: int) -> Usage:
    """The usage of a call that generated nothing."""
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens,
        prompt_tokens_details={"cached_tokens": cached_tokens},
    )


class ModelNames:
    """The names that requests may give as `model`: `configured` ones, separated by commas; if empty, any."""

    def __init__(self, configured: str, checkpoint: str) -> None:
        names = [name.strip() for name in configured.split(",") if name.strip()]
        self.names = names or [checkpoint]
        self._any = not names

    @property
    def first(self) -> str:
        """The name that answers give."""
        return self.names[0]

    def check(self, name: str | None) -> str:
        """Return the name to answer with, or raise `ApiError` if there is no such model."""
        if name is None or self._any or name in self.names:
            return self.first if name is None else name
        raise ApiError(
            404,
            f"the model '{name[:100]}' does not exist: known are {', '.join(self.names)}",
            "model",
            "model_not_found",
        )


def exactly_one(given: dict[str, Any]) -> tuple[str, Any]:
    """Return name and value of the only one of several fields that was given.

    Raises:
        ApiError: None or several were given.
    """
    present = [(name, value) for name, value in given.items() if value is not None]
    if len(present) != 1:
        names = " and ".join(f"'{name}'" for name in given)
        raise bad_request(f"exactly one of {names} is needed, not {len(present)}", next(iter(given)))
    return present[0]
