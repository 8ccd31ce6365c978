"""Processes that are started beside this one."""

import os
import pty
import sys

import pytest

from hiscore.launcher.child import start_child
from hiscore.launcher.own_cores import other_cores
from hiscore.settings import ServeSettings

CORES = os.sched_getaffinity(0)
STARTS = """
import os, sys, termios
from hiscore.launcher.child import start_child
attributes = termios.tcgetattr(2)
attributes[3] |= termios.TOSTOP
termios.tcsetattr(2, termios.TCSANOW, attributes)
child = start_child([sys.executable, "-c", sys.argv[1]])
_, status = os.waitpid(child.pid, os.WUNTRACED)
os._exit(os.WIFSTOPPED(status))
"""
WRITES = "import sys; print('a line', file=sys.stderr)"


@pytest.mark.parametrize("control", [False, True])
def test_one_may_write_to_a_terminal_that_stops_others(control: bool) -> None:
    """The control has the default action again."""
    default = "import signal; signal.signal(signal.SIGTTOU, signal.SIG_DFL);"
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", STARTS, default * control + WRITES])
    shown = b""
    try:
        while read := os.read(terminal, 1_000):
            shown += read
    except OSError:  # nobody is left who could write
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    # A session of its own, which it has without `process_group`, has no terminal to be stopped by.
    stopped = control and sys.version_info >= (3, 11)
    assert (os.waitstatus_to_exitcode(status), b"a line" in shown) == (int(stopped), not stopped), shown


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
def test_one_keeps_off_the_scorer_cores_and_we_do_not() -> None:
    own = max(CORES)
    settings = ServeSettings(scorer_cores=str(own))
    assert other_cores(settings) == CORES - {own}
    keeps = f"import os, sys; sys.exit({own} in os.sched_getaffinity(0))"
    assert start_child([sys.executable, "-c", keeps], cores=other_cores(settings)).wait() == 0
    assert os.sched_getaffinity(0) == CORES
    # The control: without the setting.
    assert other_cores(ServeSettings()) == set()
    assert start_child([sys.executable, "-c", keeps], cores=other_cores(ServeSettings())).wait() == 1
