"""From the times of few and of many layers to that of one layer and of all: arithmetic alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perf.decoding.closed_loop import ClosedLoop

DENSE, LAYERS = 3, 61
"""Layers of DeepSeek-V3.2 without experts, and all."""
SHORTEST = 64
"""Tokens that a request generates at least, however little time there is."""


@dataclass(frozen=True)
class Times:
    """What some layers take.

    Attributes:
        step_ms: A step of all callers, on the device.
        prompt_ms: Of one prompt, alone: to its first token.
        hit_rate: Of selected tokens, those on the device.
        swap_in_mib: Copied from the host in a step.
        gib: On the first rank's device, with pools.
    """

    step_ms: float
    prompt_ms: float
    hit_rate: float
    swap_in_mib: float
    gib: float


def layer_times(few: Mapping[str, Times], most: Times, routed: int) -> dict[str, Any]:
    """Milliseconds of a layer and of all, of steps and of prompts.

    A prompt's last layer computes no MLP, so one layer more adds an attention and the MLP before it.

    Args:
        few: "1", "3" layers without experts; "4": one more with them.
        most: Layers of them.
        routed: Layers with experts among those.
    """
    found: dict[str, Any] = {}
    for name in ("step_ms", "prompt_ms"):
        one, three, four = (getattr(few[key], name) for key in ("1", "3", "4"))
        last: float = getattr(most, name)
        of_routed = (last - four) / (routed - 1)
        found[name] = {
            "without experts": (three - one) / 2,
            "with experts": of_routed,
            "all": last + (LAYERS - DENSE - routed) * of_routed,
        }
    found["step_ms"]["embedding, head and sampling"] = few["1"].step_ms - found["step_ms"]["without experts"]
    return found


def fitted(load: ClosedLoop, times: Times, seconds: float) -> tuple[ClosedLoop, int]:
    """The load of a round, and how many of them take so long at most.

    Args:
        load: The whole load.
        times: Of its steps and prompts.
        seconds: Of all rounds of an arm.
    """
    one = replace(load, count=min(load.count, 2 * load.at_once))
    waves = -(-one.count // one.at_once)
    prefill_s = one.count * times.prompt_ms / 1e3
    step_s = waves * max(times.step_ms, 1e-3) / 1e3
    rounds = min(load.count // one.count, int(seconds / (prefill_s + one.tokens * step_s)))
    if rounds:
        return one, rounds
    tokens = int((seconds - prefill_s) / step_s)
    return replace(one, tokens=max(min(SHORTEST, load.tokens), min(load.tokens, tokens))), 1


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds between tokens: their mean, median and 99th percentile."""
    if not seconds:
        return {"mean": float("nan"), "p50": float("nan"), "p99": float("nan"), "count": 0}
    ms = 1e3 * np.array(seconds)
    p50, p99 = np.quantile(ms, (0.5, 0.99)).tolist()
    return {"mean": float(ms.mean()), "p50": p50, "p99": p99, "count": len(ms)}
