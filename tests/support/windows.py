"""Sequences that are preempted, spilled and come back, also over models with windows; other memory is poison."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from hiscore.decoding.sequence import Sequence
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import CONTEXT, checkpoint, prompt
from tests.support.worker_driver import Driver

FEW = (160, 192)
"""Tokens selected, and tokens in the buffer."""
# Longer than a buffer, and shorter; both longer than a window, and neither ends with a page.
LONG, SHORT = 350, 41
# Of four layers: windows in every other one, in all but every third, in all.
HOST_LAYERS = {"gemma2": 2, "gemma3": 1, "gpt-oss": 2, "mistral": 0}
WINDOW = 40
"""Tokens: more than a page of 32, so that two pages take turns."""


def checkpoints(directory: Callable[[], Path]) -> Callable[[str], Path]:
    """Of a family, by its name; behind an @ the window, where it is not the family's own."""

    def make(name: str) -> Path:
        family, _, window = name.partition("@")
        return checkpoint(family, directory(), **({"sliding_window": int(window)} if window else {}))

    return make


def outputs(worker: CacheWorker, resident: bool) -> list[Tensor]:
    """Logits of prompts and steps; resident: they attend to everything until they are spilled."""
    driver = Driver(worker)
    long, first = driver.admit(prompt(LONG), CONTEXT - LONG, resident=resident)
    short, second = driver.admit(prompt(SHORT, seed=1), 60, resident=resident)
    found = [first, second, driver.step([long, short], fed=[3, 4])]
    for stays in (False, True):
        # Both are preempted, and change places in the tables.
        sequences = [driver.leave(each, preempt=True) for each in (long, short)]
        short, long = (driver.resume(_with(each, resident and stays)) for each in reversed(sequences))
        found += [driver.step([short, long], fed=[5, 6]) for _ in range(3)]
    # Past the next page's beginning.
    found += [driver.step([short, long], fed=[7, 8]) for _ in range(30)]
    driver.leave(long)
    third, last = driver.admit(prompt(LONG - 60, seed=2), 40)
    found += [last, driver.step([short, third], fed=[7, 8])]
    for each in (short, third):
        driver.leave(each)
    return found


def _with(sequence: Sequence, resident: bool) -> Sequence:
    sequence.resident = resident
    return sequence
