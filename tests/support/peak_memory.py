"""What a computation allocates on the CPU, temporary tensors inside of operations too."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(compute: Callable[[], Any]) -> int:
    """The most bytes that are allocated at once meanwhile.

    Args:
        compute: What it returns is held to its end.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        held = compute()
    del held
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
