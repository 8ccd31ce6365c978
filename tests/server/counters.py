"""What the metrics endpoint counts, before and after, and the processor time that models take."""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from hiscore.launcher import Server

LINE = re.compile(r'^(\w+)\{(?:[^}]*,)?model="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


def read(server: Server) -> dict[tuple[str, str], int]:
    """Counters by (model, name), summed over their other labels."""
    with urllib.request.urlopen(server.metrics_url) as response:
        found = LINE.findall(response.read().decode())
    counters: Counter[tuple[str, str]] = Counter()
    for name, model, value in found:
        counters[model, name] += int(float(value))
    return counters


def settled(server: Server) -> dict[tuple[str, str], int]:
    """As `read`, once nothing rises any more: a batch is counted just after its callers have their answers."""
    last, same = read(server), 0
    while same < 3:
        time.sleep(0.05)
        now = read(server)
        same = same + 1 if now == last else 0
        last = now
    return last


@contextmanager
def counted(server: Server) -> Iterator[dict[tuple[str, str], int]]:
    """Inside nothing; after the block, what each counter rose by."""
    risen: dict[tuple[str, str], int] = {}
    before = settled(server)
    yield risen
    risen.update({key: value - before.get(key, 0) for key, value in settled(server).items()})


def processor_seconds(server: Server) -> float:
    """Processor time of the models so far: unlike the clock, it does not count what else the machine does."""
    models = [child for child in psutil.Process(server.pid).children() if "stub" in child.name()]
    assert models
    return float(sum(sum(model.cpu_times()[:2]) for model in models))
