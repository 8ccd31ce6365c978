"""Claims on memory by the models of one server, which are processes of their own and start at the same time.

Each would see the same free memory and take it for its own. So the first to plan writes down what was free, and
every claim is checked against that, less the claims of the others.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hiscore.server.plan import MemoryPlan

log = logging.getLogger(__name__)


class Ledger:
    """The claims of one server's models, in its directory; without one, this process plans alone."""

    def __init__(self, directory: Path | None = None, server: int | None = None) -> None:
        # A restarted server begins with no claims: its models are children of another process.
        self._file = directory / f"memory-{server or os.getppid()}.json" if directory else None
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
            claims = {owner: sum(line.bytes for line in plan.lines if not line.shared)}
            claims |= {line.shared: line.bytes for line in plan.lines if line.shared}
            left = account["free"] - sum(
                size for name, size in account["claims"].items() if name not in claims
            )
            log.info("%s", plan.table(left))
            plan.check(left)
            account["claims"] |= claims

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
