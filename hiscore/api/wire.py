"""Parts of wire formats that several families share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import ApiError, bad_request
from hiscore.models.adapter_files import AdapterFacts

EMPTY: Mapping[str, AdapterFacts] = MappingProxyType({})
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


class Answer(msgspec.Struct, kw_only=True):
    id: str
    object: str
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    model: str


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int]


class Listed(Answer, kw_only=True):
    """Base of answers with a part for each text."""

    object: str = "list"
    usage: Usage


def usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details={"cached_tokens": cached_tokens},
    )


@dataclass(frozen=True)
class ModelCall:
    """A request's id, the name of its model to answer with, and the adapter that computes it; empty: none."""

    id: str
    model: str
    adapter: str = ""


class ModelNames:
    """The names that requests may give as `model`: `configured` ones, separated by commas, and those of adapters.

    Without either a request may give any. With adapters an unknown name is refused, since it may be one misspelt.

    Args:
        labels: Of the checkpoint's own head; 0: it has none.

    Raises:
        ValueError: An adapter has the name of the checkpoint.
    """

    def __init__(
        self, configured: str, checkpoint: str, adapters: Mapping[str, AdapterFacts] = EMPTY, labels: int = 0
    ) -> None:
        names = [name.strip() for name in configured.split(",") if name.strip()]
        self.adapters, self._labels = adapters, labels
        self.names = [*(names or [checkpoint]), *adapters]
        self._any = not names and not adapters
        if len(set(self.names)) < len(self.names):
            raise ValueError("an adapter (ADAPTERS) has the same name as the checkpoint: see API_MODEL_NAMES")

    @property
    def first(self) -> str:
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

    def call(self, name: str | None, request_id: str, any_head: bool = False) -> ModelCall:
        """Find what a request's `model` names, or raise `ApiError`, as `check` does.

        Unless the route reads `any_head`, an adapter is refused whose head is not like the checkpoint's.
        """
        model = self.check(name)
        if model not in self.adapters:
            return ModelCall(request_id, model)
        if not any_head and self.adapters[model].labels not in (0, self._labels):
            raise bad_request(
                f"the adapter '{model}' has a head of its own: ask /v1/score or /classify", "model"
            )
        return ModelCall(request_id, model, model)


def exactly_one(given: dict[str, Any]) -> tuple[str, Any]:
    """Return name and value of the only one of several fields that was given, or raise `ApiError`."""
    present = [(name, value) for name, value in given.items() if value is not None]
    if len(present) != 1:
        names = " and ".join(f"'{name}'" for name in given)
        raise bad_request(f"exactly one of {names} is needed, not {len(present)}", next(iter(given)))
    return present[0]
