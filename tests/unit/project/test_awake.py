"""The recipe of docs/operations.md that keeps cores awake."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.processes import alive
from tests.support.timeouts import wait_until

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def test_the_recipe_gives_each_core_a_process_below_all_others_that_ends_with_the_server(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "awake.py"
    recipe.write_text(PAGE.read_text().partition("```python\n")[2].partition("```")[0])
    server = subprocess.Popen([sys.executable, recipe, "sleep", "1000"])
    try:
        first = psutil.Process(server.pid)
        wait_until(lambda: first.name() == "sleep")
        cores = first.children()
        wait_until(lambda: all(os.sched_getscheduler(each.pid) == os.SCHED_IDLE for each in cores))
        wait_until(lambda: all(each.status() == psutil.STATUS_RUNNING for each in cores))
        assert sorted(each.cpu_affinity() for each in cores) == [
            [core] for core in sorted(os.sched_getaffinity(0))
        ]
        assert os.sched_getscheduler(server.pid) == os.SCHED_OTHER
        # Linux shares processors between sessions: in another, they would be below nothing.
        assert {os.getsid(each.pid) for each in cores} == {os.getsid(server.pid)}
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not alive(cores))
