"""What the metrics endpoint counts, before and after, and the processor time that models take."""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil

from hiscore.launcher import Server
from tests.support.timeouts import wait_until

LINE = re.compile(r'^(\w+)\{(?:[^}]*,)?model="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


def read(server: Server) -> Counter[tuple[str, str]]:
    """Counters by (model, name), summed over their other labels."""
    with urllib.request.urlopen(server.metrics_url) as response:
        found = LINE.findall(response.read().decode())
    counters: Counter[tuple[str, str]] = Counter()
    for name, model, value in found:
        counters[model, name] += int(float(value))
    return counters


def settled(server: Server) -> dict[tuple[str, str], int]:
    """As `read`, once nothing has risen for a while: a batch is counted just after it is answered."""
    last, same = read(server), 0
    while same < 5:
        time.sleep(0.1)
        now = read(server)
        same = same + 1 if now == last else 0
        last = now
    return last


@contextmanager
def counted(
    server: Server, at_least: Mapping[tuple[str, str], int] | None = None
) -> Iterator[dict[tuple[str, str], int]]:
    """Inside nothing; after the block, what each counter rose by; at_least: what is waited for."""
    risen: dict[tuple[str, str], int] = {}
    before = settled(server)
    yield risen
    wanted = {key: before.get(key, 0) + rise for key, rise in (at_least or {}).items()}
    wait_until(lambda: all(read(server)[key] >= value for key, value in wanted.items()), lambda: read(server))
    risen.update({key: value - before.get(key, 0) for key, value in settled(server).items()})


def processor_seconds(server: Server) -> float:
    """Processor time of the models so far: unlike the clock, it does not count what else the machine does."""
    models = [child for child in psutil.Process(server.pid).children() if "stub" in child.name()]
    assert models
    return float(sum(sum(model.cpu_times()[:2]) for model in models))
