"""`make demo` as a newcomer runs it: what it prints is right, and nothing is left running."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore_client.cli.demo import REVIEWS
from tests.server.leftovers import processes

pytestmark = pytest.mark.server

POSITIVE, NEGATIVE = {0, 2, 4}, {1, 3, 5}


def demo(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hiscore_client.cli.demo"],
        env={**os.environ, "COLUMNS": "120", "TMPDIR": str(tmp_path), **environment},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_the_demo_ranks_reviews_and_chats(tmp_path: Path) -> None:
    run = demo(tmp_path, DEVICE="cpu")
    assert run.returncode == 0, run.stderr
    ranked = [REVIEWS.index(review) for review in re.findall("|".join(map(re.escape, REVIEWS)), run.stdout)]
    assert set(ranked[:3]) == POSITIVE
    assert set(ranked[3:]) == NEGATIVE
    difference = re.search(r"Largest difference between the two: (\S+)\.\n", run.stdout)
    assert difference
    # The sums of float32 probabilities are taken in another order.
    assert float(difference.group(1)) < 1e-4
    answer = run.stdout.partition("A chat, streamed")[2]
    assert "Paris" in answer
    assert "finish reason 'stop'" in answer
    assert list(tmp_path.iterdir()) == []
    assert processes(str(tmp_path)) == []
