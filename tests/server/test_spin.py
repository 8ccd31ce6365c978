"""Servers whose cores are kept awake: the same answers, and nothing is left of it."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from hiscore.launcher import Server
from hiscore.settings import ServeSettings
from hiscore_client import ScoreClient
from tests.support.processes import alive
from tests.support.timeouts import wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]


def spinners() -> list[psutil.Process]:
    """This process's children that keep cores awake, and theirs: one, and one for each core."""

    def find() -> list[psutil.Process]:
        found = []
        for child in alive(psutil.Process().children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found += [child] * any(word.endswith("/launcher/spin.py") for word in child.cmdline())
        return found

    wait_until(lambda: len(find()) == 1 + len(os.sched_getaffinity(0)))
    return find()


def scores(server: Server) -> np.ndarray:
    rng = np.random.default_rng(0)
    with ScoreClient(server.grpc_url) as client:
        query, items = rng.integers(0, 90, 40).tolist(), rng.integers(0, 90, (12, 7)).tolist()
        return client.score_ids(query, items, [5, 6], apply_softmax=True).scores


def test_spinning_changes_no_answer_and_ends_with_the_server(tiny_llama: Path, tmp_path: Path) -> None:
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
    settings = ServeSettings(model=str(tiny_llama), models="scorer", device="cpu", spin=20, **ports)
    with Server(settings, tmp_path / "log") as server:
        awake, before = scores(server), spinners()
        assert alive(before) == before
        server.kill()
        wait_until(lambda: not alive(before))
        server.restart()
        after = spinners()
        for process in after:
            process.suspend()
        np.testing.assert_array_equal(scores(server), awake)
    wait_until(lambda: not alive(after))
