"""Claims on memory by the models of one server, which are processes of their own and start at the same time.

Each would see the same free memory and take it for its own. So the first to plan writes down what was free, and
every claim is checked against that, less the claims of the others.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hiscore.server.plan import MemoryPlan

log = logging.getLogger(__name__)


class Ledger:
    """The claims of one server's models, in its directory; without one, this process plans alone.

    Claims are those of a `process`, that of the first of a model's ranks.
    """

    def __init__(
        self, directory: Path | None = None, server: int | None = None, process: int | None = None
    ) -> None:
        # A restarted server begins with no claims: its models are children of another process.
        self._file = directory / f"memory-{server or os.getppid()}.json" if directory else None
        self._process = str(process or os.getpid())
        self._alone: dict[str, Any] = {}

    def free(self, place: str, measure: Callable[[], int]) -> int:
        """Return the bytes of a device or ``host`` that were free before any model of this server claimed some."""
        with self._open() as places:
            account = places.setdefault(place, {"claims": {}})
            if "free" not in account:
                account["free"] = measure()
            free: int = account["free"]
        return free

    def claim(self, owner: str, plan: MemoryPlan) -> None:
        """Log a plan, check that it fits beside others' claims, and write it down in place of its owner's last.

        Raises:
            MemoryExceeded: The plan does not fit.
        """
        with self._open() as places:
            account = places[plan.place]
            own = [(line.shared, line.bytes) for line in plan.lines]
            of_process = account["claims"].setdefault(self._process, {})
            of_process.pop(owner, None)
            others = [
                line for owners in account["claims"].values() for lines in owners.values() for line in lines
            ]
            left = account["free"] - _sum(others, without={shared for shared, _ in own})
            log.info("%s", plan.table(left))
            plan.check(left)
            of_process[owner] = own

    def release(self) -> None:
        """Strike out what the process has claimed, in all places."""
        with self._open() as places:
            for account in places.values():
                account["claims"].pop(self._process, None)

    @contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """Hold the ledger alone, and write its contents back if nothing was raised."""
        if self._file is None:
            yield self._alone
            return
        with open(self._file, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            places = json.loads(text) if text else {}
            yield places
            file.seek(0)
            file.truncate()
            json.dump(places, file)


def _sum(claims: Sequence[tuple[str, int]], without: Collection[str]) -> int:
    """Add up claims, each that is shared once, and not those of some names."""
    shared = {name: size for name, size in claims if name and name not in without}
    return sum(size for name, size in claims if not name) + sum(shared.values())
