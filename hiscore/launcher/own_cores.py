"""A core of its own for each thread that scores on a GPU: a part of the setting SPIN.

Before the GPU can begin, a call takes some tenths of a millisecond of Python, and longer on a core whose caches
hold what others did last. Linux lets a thread that wakes run on any core that idles. So each of these threads is
kept on one core, and the other threads of the server off it.

What such a thread starts later stays on its core, too. That is no loss: the threads that compute for it, such as
those that turn texts into tokens, start while its model loads.
"""

import logging
import os
from collections.abc import Collection
from contextlib import suppress

import psutil

from hiscore.launcher.stubs import MODEL

log = logging.getLogger(__name__)

OTHERS = 3
"""Cores that the rest of the server must have for each that is given away."""


def give_own_cores(server: int, others: int = OTHERS) -> list[int]:
    """Give each instance of `scorer` a core of its own, if there are enough.

    Args:
        server: Process id of a tritonserver whose models are ready.
        others: Cores that have to be left for each that is given.

    Returns:
        The cores.
    """
    cores = sorted(os.sched_getaffinity(server))
    root = psutil.Process(server)
    processes = [root, *root.children(recursive=True)]
    scorers = [process for process in processes if _model(process) == "scorer"]
    if not scorers or len(cores) < (1 + others) * len(scorers):
        return []
    own = cores[-len(scorers) :]
    for process in processes:
        for thread in _threads(process):
            _keep_on(thread, set(cores) - set(own))
    for scorer, core in zip(scorers, own, strict=True):
        # Triton's stub calls the model on its first thread.
        _keep_on(scorer.pid, {core})
    log.info("cores of their own for the threads that score: %s", ", ".join(map(str, own)))
    return own


def _model(process: psutil.Process) -> str:
    """The model that a process runs; empty if it runs none."""
    with suppress(psutil.NoSuchProcess):
        if found := MODEL.search(" ".join(process.cmdline())):
            return found.group(1)
    return ""


def _threads(process: psutil.Process) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [thread.id for thread in process.threads()]
    return []


def _keep_on(thread: int, cores: Collection[int]) -> None:
    with suppress(ProcessLookupError):  # ended since it was listed
        os.sched_setaffinity(thread, cores)
