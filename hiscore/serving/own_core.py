"""A core for the thread that calls a model: the setting SCORER_CORES."""

import os
from collections.abc import Sequence

from hiscore.models.server_resources import Instance


def stay_on(cores: Sequence[int], instance: Instance, ranks: int) -> None:
    """Keep the calling thread, and those that it starts from now on, on the core of a model's instance.

    Triton calls a model on the thread that loads it. What a call needs then stays in that core's caches; otherwise
    Linux may wake the thread on any idle core.

    Args:
        cores: One for each instance; empty: the thread stays where it likes.
        instance: Which it is.
        ranks: GPUs of each instance.
    """
    if cores:
        _, _, gpu = instance.device.partition(":")
        os.sched_setaffinity(0, {cores[int(gpu) // ranks if gpu else instance.number]})
