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

from hiscore.memory.plan import MemoryPlan

log = logging.getLogger(__name__)

Measure = Callable[[], int]
Planner = Callable[[int], MemoryPlan]
"""Makes a plan, given the bytes that were free before anybody claimed any."""


class Ledger:
    """The claims of one server's models.

    Args:
        directory: The server's own; None: this process plans alone.
    """

    def __init__(self, directory: Path | None = None) -> None:
        # A restarted server begins with no claims: its models are children of another process.
        self._file = directory / f"memory-{os.getppid()}.json" if directory else None
        self._alone: dict[str, Any] = {}

    @classmethod
    def of_server(cls, model_repository: str) -> "Ledger":
        """The ledger of a server, in the directory that the launcher has made for it.

        Args:
            model_repository: A model's directory, as Triton passes it.
        """
        return cls(Path(model_repository).resolve().parents[1])

    def claim(self, place: str, owner: str, measure: Measure, plan: Planner) -> MemoryPlan:
        """Plan, check that it fits beside the claims of others, log it, and write it down.

        Args:
            place: A device, or ``host``.
            owner: Whose claim it is; an earlier one of the same owner is replaced.
            measure: Bytes that are free now.
            plan: Makes the plan.

        Raises:
            MemoryExceeded: It does not fit.
        """
        with self._open() as places:
            account = places.setdefault(place, {"free": None, "claims": {}})
            if account["free"] is None:
                account["free"] = measure()
            others = {name: size for name, size in account["claims"].items() if name != owner}
            left = account["free"] - sum(others.values())
            planned = plan(account["free"])
            log.info("%s", planned.table(left))
            planned.check(left)
            account["claims"][owner] = planned.total
        return planned

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
