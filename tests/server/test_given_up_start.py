"""A machine that stands still for a moment while a model loads: Triton takes the model's process for dead."""

from pathlib import Path

import pytest

from tests.server.test_launcher_signals import LAUNCHER, launched
from tests.server.test_watchdog import hanging_repository

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

# Added to the models' own model.py: the first process of all stands still once, for longer than Triton waits for a
# sign of life. It has read by then what it is to load.
STANDS_STILL = """
import os
import signal
import subprocess

_initialize = TritonPythonModel.initialize


def _standing_still(self, args):
    if not os.path.exists({flag!r}):
        open({flag!r}, "w").close()
        subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {{os.getpid()}}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    _initialize(self, args)


TritonPythonModel.initialize = _standing_still
"""


def test_a_start_that_triton_has_given_up_is_tried_again(tiny_llama: Path, tmp_path: Path) -> None:
    """It would never get ready: Triton waits for the process to end, and the process for calls."""
    flag, log = tmp_path / "stood-still", tmp_path / "log"
    repository = hanging_repository(tmp_path / "repository", flag, STANDS_STILL)
    with launched(LAUNCHER, tiny_llama, log, MODELS="scorer", HISCORE_MODEL_REPOSITORY=str(repository)):
        assert flag.exists()
    assert "Triton has given up model scorer" in log.read_text()
    assert log.read_text().count("successfully loaded 'scorer'") == 1
