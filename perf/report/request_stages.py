"""Stages of a call, from the server's own statistics that perf_analyzer reports."""

import re
from collections.abc import Mapping
from typing import Any

# perf_analyzer's report of one run; its times are averages in microseconds.
RUN = re.compile(
    r"^\$ perf_analyzer (?P<command>.*)$"
    r".*?Avg gRPC time: (?P<client>\d+) usec"
    r".*?Avg request latency: \d+ usec \(overhead (?P<overhead>\d+) usec \+ queue (?P<queue>\d+) usec"
    r" \+ compute input (?P<input>\d+) usec \+ compute infer (?P<infer>\d+) usec"
    r" \+ compute output (?P<output>\d+) usec\)",
    re.MULTILINE | re.DOTALL,
)
ONE_AT_A_TIME = re.compile(r"--concurrency-range 1\b")
START = re.compile(r"^(?=\$ perf_analyzer )", re.MULTILINE)


def split(parts: Mapping[str, int], forward: Mapping[str, float] | None) -> dict[str, float]:
    """Milliseconds by stage.

    Args:
        parts: Microseconds, as perf_analyzer reports them.
        forward: `gpu_ms` and `total_ms` of the forward alone, where known.
    """
    server = sum(parts[name] for name in ("overhead", "queue", "input", "infer", "output"))
    stages = {
        "client, network, gRPC": parts["client"] - server,
        "Triton, before execute": parts["queue"] + parts["overhead"],
        "Triton, tensors in": parts["input"],
        "Triton, tensors out": parts["output"],
    }
    found = {name: value / 1e3 for name, value in stages.items()}
    infer = parts["infer"] / 1e3
    if forward is None or infer < forward["total_ms"]:
        return found | {"execute": infer}
    host = forward["total_ms"] - forward["gpu_ms"]
    return found | {
        "execute, outside the forward": infer - forward["total_ms"],
        "forward, launch and copy": host,
        "forward, GPU": forward["gpu_ms"],
    }


def read(log: str, forward: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Stages of runs with one call at a time, by name, from perf-analyzer.txt and forward.json.

    perf.scoring.serving sends its single prompts first and its request last; the order tells them apart.
    """
    alone = [
        {name: int(match[name]) for name in ("client", "overhead", "queue", "input", "infer", "output")}
        for text in START.split(log)
        if (match := RUN.search(text)) and ONE_AT_A_TIME.search(match["command"])
    ]
    prompts = [name for name in forward if name.startswith("1 prompt of")]
    request = next((name for name in forward if name == "1 x (120 + 10 x 180)"), None)
    names = {0: "one prompt", len(alone) - 1: "one call"}
    forwards = {
        "one prompt": forward[prompts[0]] if prompts else None,
        "one call": forward.get(request or ""),
    }
    return {name: split(alone[index], forwards[name]) for index, name in names.items() if len(alone) > 1}
