"""The stages of a call, from Triton's trace and the client's clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass
class Request:
    """A request to a model: timestamps in nanoseconds by name, and the requests that an ensemble made of it."""

    model: str
    stamps: dict[str, int] = field(default_factory=dict)
    children: dict[str, "Request"] = field(default_factory=dict)


def read_trace(entries: Sequence[Mapping[str, Any]]) -> list[Request]:
    """The requests of clients in order of arrival, from the entries of Triton's trace file."""
    named = {entry["id"]: entry for entry in entries if "model_name" in entry}
    found = {number: Request(entry["model_name"]) for number, entry in named.items()}
    for entry in entries:
        for stamp in entry.get("timestamps", ()):
            found[entry["id"]].stamps.setdefault(stamp["name"], stamp["ns"])
    roots = []
    for number, entry in named.items():
        if "parent_id" in entry:
            found[entry["parent_id"]].children[entry["model_name"]] = found[number]
        else:
            roots.append(found[number])
    return sorted(roots, key=lambda request: request.stamps["GRPC_WAITREAD_END"])


def stages(request: Request, sent: int, done: int) -> dict[str, float]:
    """Milliseconds by stage, in order.

    Args:
        sent: When the client made the call, in the trace's nanoseconds.
        done: When it had the answer.

    Raises:
        ValueError: The timestamps are out of order, so the request is not that of this call.
    """
    scorer = request.children.get("scorer", request)
    marks = [
        ("", sent),
        ("client and network, there", request.stamps["GRPC_WAITREAD_END"]),
        ("Triton, before the scorer", scorer.stamps["COMPUTE_START"]),
        ("scorer", request.stamps["INFER_RESPONSE_COMPLETE"]),
        # The client may have its answer before the server has recorded the end of sending.
        ("gRPC, network and client, back", done),
    ]
    found = {name: (after - before) / 1e6 for (_, before), (name, after) in pairwise(marks)}
    if min(found.values()) < 0:
        raise ValueError(f"the trace is not of this call: {found}")
    return found
