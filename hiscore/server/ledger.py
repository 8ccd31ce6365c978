"""Claims on memory by the models of one server, which are processes of their own and start at the same time.

Each would see the same free memory and take it for its own. So whoever plans first writes down what was free, and
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
    """The claims of one server's models.

    Args:
        directory: The server's own; None: this process plans alone.
        server: Process id of the server; None: this process is a child of it.
    """

    def __init__(self, directory: Path | None = None, server: int | None = None) -> None:
        # A restarted server begins with no claims: its models are children of another process.
        self._file = directory / f"memory-{server or os.getppid()}.json" if directory else None
        self._alone: dict[str, Any] = {}

    def free(self, place: str, measure: Callable[[], int]) -> int:
        """Bytes that were free before any model of this server claimed some.

        Args:
            place: A device, or ``host``.
            measure: Bytes that are free now; called for the first who asks.
        """
        with self._open() as places:
            account = places.setdefault(place, {"claims": {}})
            if "free" not in account:
                account["free"] = measure()
            free: int = account["free"]
        return free

    def claim(self, owner: str, plan: MemoryPlan) -> None:
        """Log a plan, check that it fits beside the claims of others, and write it down.

        Args:
            owner: Whose it is; an earlier claim of the same owner is replaced.
            plan: For a place that somebody has measured with `free`.

        Raises:
            MemoryExceeded: It does not fit.
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
        """The ledger's contents, written back if nothing was raised; nobody else has it meanwhile."""
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
