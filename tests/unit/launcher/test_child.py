import os
import pty
import sys

import pytest

from hiscore.launcher.child import Child

STARTS = """
import os, sys, termios
from hiscore.launcher.child import Child
attributes = termios.tcgetattr(2)
attributes[3] |= termios.TOSTOP
termios.tcsetattr(2, termios.TCSANOW, attributes)
child = Child([sys.executable, "-c", sys.argv[1]])
_, status = os.waitpid(child.pid, os.WUNTRACED)
os._exit(os.WIFSTOPPED(status))
"""
WRITES = "import sys; print('a line', file=sys.stderr)"


@pytest.mark.slow
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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Popen has no process_group")
def test_one_is_in_our_session_but_not_in_our_group() -> None:
    """What keeps cores awake is below it there (docs/operations.md); a Ctrl-C does not reach it."""
    child = Child([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        child.kill()
