import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.launcher.__main__ import MakeInterrupt
from tests.support.processes import start_heeding_sigint


@pytest.mark.slow
def test_a_make_that_got_a_sigint_is_noticed(tmp_path: Path) -> None:
    script = (
        "import time\nfrom hiscore.launcher.__main__ import MakeInterrupt\nwatch = MakeInterrupt()\n"
        "print(watch.interrupted(), flush=True)\nwhile not watch.interrupted():\n    time.sleep(0.05)\n"
        "print('noticed', flush=True)\n"
    )
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "Makefile").write_text(f"all:\n\t@exec {sys.executable} script.py\n")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = ["make", "-C", str(tmp_path)]
    with start_heeding_sigint(command, env=environment, stdout=subprocess.PIPE, text=True) as make:
        assert make.stdout is not None
        lines = iter(make.stdout.readline, "")
        assert "False" in (line.strip() for line in lines)
        make.send_signal(signal.SIGINT)
        assert "noticed" in make.stdout.read()


def test_a_parent_that_is_no_make_is_not_watched() -> None:
    assert not MakeInterrupt().interrupted()
