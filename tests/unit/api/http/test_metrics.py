import subprocess
import sys
from pathlib import Path

import pytest

LINES = 'hiscore_api_requests_total{route="/a",status="200"} %g'
BEGIN = "from hiscore.api.http.metrics import Metrics; m = Metrics();"


def page(directory: Path, work: str = "") -> str:
    """What a new process serves after its own work."""
    command = [sys.executable, "-c", f"{BEGIN} {work} print(m.page().decode())"]
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_any_process_serves_the_sum_of_all(tmp_path: Path) -> None:
    pages = [page(tmp_path, "m.started('/a'); m.finished('/a', 200, 1.0);") for _ in range(3)]
    assert [LINES % count in page for count, page in enumerate(pages, 1)] == [True] * 3


@pytest.mark.parametrize("dies", [True, False])
def test_what_a_process_was_answering_when_it_died_runs_no_more(dies: bool, tmp_path: Path) -> None:
    """The control lives; what both have answered stays counted."""
    work = (
        "m.started('/a'); m.started('/a'); m.finished('/a', 200, 1.0); print('started', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{BEGIN} {work}"],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "started\n"
        if dies:
            other.kill()
            other.wait()
        found = page(tmp_path)
        other.kill()
    assert LINES % 1 in found
    assert ('hiscore_api_requests_running{route="/a"} 1' in found) == (not dies)
