import subprocess
import sys
from pathlib import Path

from hiscore.server import die_with_parent
from tests.support.timeouts import wait_until


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    # The parent starts a child under the wrapper, says its id and waits; then it is killed.
    script = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-IS', {die_with_parent.__file__!r}, str(os.getpid()), "
        "'/bin/sleep', '60'])\nprint(child.pid, flush=True)\nchild.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        wait_until(lambda: (child / "comm").read_text().strip() == "sleep")
        parent.kill()
        wait_until(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text())
