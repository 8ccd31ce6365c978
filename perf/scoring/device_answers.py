"""Answers of a server's devices to the same calls."""

import time
from typing import Any

import numpy as np

from hiscore.arrays import Float32
from hiscore.launcher import Server
from hiscore_client import ScoreClient
from perf.loadgen.score_check import check_contrast, scores_of
from perf.loadgen.scorer_calls import Ids
from perf.loadgen.scorer_counters import items_by_device
from perf.loadgen.window import WrongScores

# A call alone goes to any idle instance; sent this often, every device answers it at least once.
MOST_ASKED = 40
COUNTED_S = 5.0


def answers_by_device(server: Server, call: Ids, devices: int) -> dict[str, Float32]:
    """Send a call alone until every device has answered it: scores by device, float32 [items, labels]."""
    found: dict[str, Float32] = {}
    with ScoreClient(server.grpc_url) as client:
        for _ in range(MOST_ASKED):
            before = items_by_device(server)
            scores = scores_of(client, call)
            found.setdefault(_which_rose(server, before, len(call.items)), scores)
            if len(found) == devices:
                break
    return found


def _which_rose(server: Server, before: dict[str, int], items: int) -> str:
    """The device whose counter rose by these items; a batch is counted just after its answer is sent."""
    until = time.monotonic() + COUNTED_S
    while time.monotonic() < until:
        risen = {name: count - before.get(name, 0) for name, count in items_by_device(server).items()}
        if sum(risen.values()) >= items:
            (device,) = (name for name, count in risen.items() if count)
            return device
        time.sleep(0.005)
    raise WrongScores("no device has counted the items of an answered call")


def compare_devices(server: Server, calls: list[Ids], devices: int, tolerance: float) -> dict[str, Any]:
    """The largest difference between devices over some calls; which of them answered; the neighbour's as control.

    Raises:
        WrongScores: devices disagree, or items differ so little that it would not show.
    """
    largest, control = 0.0, 0.0
    answered: set[str] = set()
    for call in calls:
        scores = answers_by_device(server, call, devices)
        first = next(iter(scores.values()))
        control = max(control, float(np.abs(first - np.roll(first, 1, axis=0)).max()))
        largest = max(largest, *(float(np.abs(other - first).max()) for other in scores.values()))
        answered |= scores.keys()
    check_contrast(control, tolerance)
    if largest > tolerance:
        raise WrongScores(f"devices differ by {largest:.2g} in the score of a call")
    return {"largest_difference": largest, "control": control, "devices": sorted(answered)}
