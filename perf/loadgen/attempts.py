"""Steps of a run of which one may fail without costing the others their results."""

import traceback
from collections.abc import Callable
from typing import TypeVar

from perf.script import described, failed

Result = TypeVar("Result")


class Attempts:
    """Runs steps and records those that fail.

    Attributes:
        failures: A line for each failed step.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []

    def attempt(self, name: str, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`, or None if it failed."""
        try:
            return work()
        except Exception as error:
            self.failures.append(f"{name}: {described(error)}")
            self._show_failure(failed(self.failures[-1]), traceback.format_exc())
            return None

    def _show_failure(self, line: str, trace: str) -> None:
        print(f"{line}\n{trace}", flush=True)
