import subprocess
import sys
from pathlib import Path

import pytest

LINES = 'hiscore_api_requests_total{route="/a",status="200"} %g'


def test_any_process_serves_the_sum_of_all(tmp_path: Path) -> None:
    program = (
        "from hiscore.api.http.metrics import Metrics; m = Metrics(); m.started('/a'); m.finished('/a', 200, 1.0);"
        "print(m.page().decode())"
    )
    pages = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(3)
    ]
    assert [LINES % count in page for count, page in enumerate(pages, 1)] == [True] * 3


@pytest.mark.parametrize("dies", [True, False])
def test_what_a_process_was_answering_when_it_died_runs_no_more(dies: bool, tmp_path: Path) -> None:
    """The control lives; what both have answered stays counted."""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    program = (
        "from hiscore.api.http.metrics import Metrics; m = Metrics(); m.started('/a'); m.started('/a');"
        "m.finished('/a', 200, 1.0); print('started', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "started\n"
        if dies:
            other.kill()
            other.wait()
        page = subprocess.run(
            [
                sys.executable,
                "-c",
                "from hiscore.api.http.metrics import Metrics; print(Metrics().page().decode())",
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        other.kill()
    assert LINES % 1 in page
    assert ('hiscore_api_requests_running{route="/a"} 1' in page) == (not dies)
