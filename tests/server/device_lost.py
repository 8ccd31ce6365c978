"""A server whose scorer loses its device at a call with a certain label, and what must come of it."""

import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hiscore.launcher import Server
from hiscore.launcher.repository import SHIPPED
from tests.server.conftest import settings_of
from tests.server.leftovers import leftovers
from tests.server.wire import Refused, over_grpc
from tests.support.timeouts import wait_until

FAULTY = 7
# The scorer's own model.py with some lines more.
FAULT = """
import torch

from hiscore.scoring.scorer import Scorer

_in_slices = Scorer.in_slices


def _faulty_in_slices(self, requests):
    if any(request.labels[0] == {label} for request in requests):
        {fault}
    yield from _in_slices(self, requests)


Scorer.in_slices = _faulty_in_slices
"""


def check_that_the_process_ends_and_is_seen(
    fault: str, device: Any, checkpoint: Path, tmp_path: Path
) -> None:
    """fault: a statement that fails as the device does, with the scorer as `self`."""
    repository = tmp_path / "repository"
    shutil.copytree(SHIPPED, repository)
    with (repository / "scorer/1/model.py").open("a") as model:
        model.write(FAULT.format(label=FAULTY, fault=fault))
    log = tmp_path / "server.log"
    settings = settings_of(checkpoint, models="scorer", device=device)

    def score(label: int) -> None:
        inputs = {"input_ids": [1, 2, 0, 3, 0], "delimiter_indices": [2, 4], "label_token_ids": [label]}
        over_grpc(server, "scorer", inputs, {"apply_softmax": True})

    with (
        mock.patch.dict(os.environ, HISCORE_MODEL_REPOSITORY=str(repository)),
        Server(settings, log) as server,
    ):
        score(FAULTY + 1)  # the control: nothing is wrong with calls as such
        assert not server.fault()
        with pytest.raises(Refused):
            score(FAULTY)
        wait_until(lambda: bool(server.fault()))
        assert "model scorer" in server.fault()
        # Where tritonserver has reaped it before anybody looked, only that it has died is known.
        assert any(how in server.fault() for how in ("ended with exit code 1", "has died")), server.fault()
        name = server.name
    written = log.read_text()
    assert "the device is lost" in written, written[-5_000:]
    assert leftovers(name) == []
