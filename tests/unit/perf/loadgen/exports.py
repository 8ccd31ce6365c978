from typing import Any

from perf.loadgen.perf_analyzer import Exported

S = 1_000_000_000
"""Nanoseconds, in which its timestamps count."""


def exported(
    prompt: list[int], at: float, *responses: tuple[float, Any], due: float | None = None
) -> Exported:
    """A stream as perf_analyzer writes it: one token is not a list, none is no output."""
    outputs = [{"output_ids": ids, "finish_reason": ""} if ids != [] else {} for _, ids in responses]
    outputs[-1]["finish_reason"] = "length"
    request = {
        "timestamp": int(at * S),
        "request_inputs": {"input_ids": prompt},
        "response_timestamps": [int(time * S) for time, _ in responses],
        "response_outputs": outputs,
    }
    return Exported(at if due is None else due, request)
