"""What the metrics endpoint counts, before and after."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hiscore.launcher import Server
from perf.loadgen.exports import page, wait_for_exports
from tests.support.timeouts import wait_until

EXPORTS = "hiscore_exports_total"
LINE = re.compile(r'^(\w+)\{(?:[^}]*,)?model="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


def read(server: Server) -> Counter[tuple[str, str]]:
    """Counters by (model, name), summed over their other labels."""
    found = LINE.findall(page(server.metrics_url))
    counters: Counter[tuple[str, str]] = Counter()
    for name, model, value in found:
        if name != EXPORTS:
            counters[model, name] += int(float(value))
    return counters


def tokens(server: Server) -> int:
    """Tokens that decode has generated."""
    return read(server)["decode", "hiscore_decode_tokens_total"]


def settled(
    server: Server, read: Callable[[Server], Counter[tuple[str, str]]] = read
) -> Counter[tuple[str, str]]:
    """What `read` finds once all is exported and nothing rises: a batch is counted just after it is answered."""
    last: Counter[tuple[str, str]] = Counter()
    for _ in range(100):
        wait_for_exports(server.metrics_url)
        if (now := read(server)) == last:
            return now
        last = now
    raise AssertionError("counts go on rising: calls are still being made")


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
