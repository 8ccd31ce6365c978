"""Traces: what a caller says of its own goes on to the models, whose spans then belong to it."""

import re
from collections.abc import Mapping
from contextvars import ContextVar

# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")

_CALLERS: ContextVar[dict[str, str]] = ContextVar("trace_of_the_caller", default={})  # noqa: B039


def follow(headers: Mapping[str, str]) -> None:
    """Let what this task and its own tasks ask of the models belong to the caller's trace, if there is one."""
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    found = {}
    if TRACEPARENT.fullmatch(parent):
        found["traceparent"] = parent
        if TRACESTATE.fullmatch(state):
            found["tracestate"] = state
    _CALLERS.set(found)


def metadata() -> dict[str, str]:
    return _CALLERS.get()
