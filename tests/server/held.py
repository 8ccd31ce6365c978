"""A scorer that computes nothing while a test holds it, so that the test alone decides what is in flight."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hiscore.launcher.repository import SHIPPED
from tests.support.timeouts import wait_until

# The scorer's own model.py with some lines more: a batch is launched only when it is not held any more. Meanwhile
# a file says how many calls wait behind it, and the callers of how many of these have gone. Another says how many
# items of each call every batch held.
CODE = """
import os
import time

_initialize = TritonPythonModel.initialize
_server = os.getppid()


def _holding_initialize(self, args):
    _initialize(self, args)
    model = self.batcher._model
    launch = model.launch

    def hold_and_launch(jobs):
        # A test that is killed leaves the file behind, and its server is gone.
        while os.path.exists({hold!r}) and os.getppid() == _server:
            with self.batcher._changed:
                waiting = list(self.batcher._waiting._order)
            gone = sum(request.reply_to.is_cancelled() for request in waiting)
            with open({seen!r} + ".new", "w") as file:
                file.write(f"{{len(waiting)}} {{gone}}")
            os.replace({seen!r} + ".new", {seen!r})
            time.sleep(0.02)
        if os.path.exists({seen!r}):
            os.remove({seen!r})
        with open({launched!r}, "a") as file:
            print([len(job.prompt.item_lengths) for job in jobs], file=file)
        yield from launch(jobs)

    model.launch = hold_and_launch


TritonPythonModel.initialize = _holding_initialize
"""


@dataclass(frozen=True)
class Holdable:
    """A model repository for one server on the CPU, and the files that hold its scorer."""

    repository: Path
    hold: Path
    seen: Path
    launched: Path

    @classmethod
    def make(cls, directory: Path) -> "Holdable":
        """directory: an empty one."""
        made = cls(directory / "repository", *(directory / name for name in ("hold", "seen", "launched")))
        shutil.copytree(SHIPPED, made.repository)
        with (made.repository / "scorer/1/model.py").open("a") as model:
            model.write(CODE.format(hold=str(made.hold), seen=str(made.seen), launched=str(made.launched)))
        return made

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no batch is launched. The scorer must have nothing to do before."""
        self.launched.unlink(missing_ok=True)
        self.hold.touch()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        self.hold.unlink(missing_ok=True)

    def batches(self) -> list[list[int]]:
        """Items of each call in each batch since the scorer was held."""
        return [json.loads(line) for line in self.launched.read_text().splitlines()]

    def wait_for(self, waiting: int, gone: int = 0) -> None:
        """Wait until one batch is held, so many calls wait behind it and the callers of so many have gone."""
        wait_until(lambda: self._seen() == f"{waiting} {gone}", self._seen)

    def _seen(self) -> str:
        return self.seen.read_text() if self.seen.exists() else "nothing is held"
