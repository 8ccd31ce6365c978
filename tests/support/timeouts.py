"""How long tests wait for what has to come: on any machine, only what hangs takes so long."""

import time
from collections.abc import Callable

TIMEOUT_S = 300


def wait_until(condition: Callable[[], bool], why: Callable[[], object] = str) -> None:
    """Wait for a condition.

    Args:
        condition: What is waited for.
        why: What the error says about its absence, asked only then.
    """
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"not within {TIMEOUT_S} seconds: {why()}"
        time.sleep(0.02)
