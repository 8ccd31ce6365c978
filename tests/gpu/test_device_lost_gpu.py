"""A CUDA error behind the real server: the process of the model says so and ends, and the launcher sees it."""

import shutil
import time
from pathlib import Path

import pytest
import torch

from hiscore.launcher import Server
from hiscore.settings import ServeSettings
from tests.server.leftovers import leftovers
from tests.server.wire import Refused, over_grpc

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

FAULTY = 7
# The scorer's own model.py with one line more: a call with this label reads beyond a tensor on the device, which
# no later call of the process survives.
FAULT = f"""
import torch

_launch = Scorer._launch


def _faulty_launch(self, calls, batch):
    if any(call.labels[0] == {FAULTY} for call in calls):
        torch.zeros(1, device=self.device)[torch.tensor([9], device=self.device)]
    return _launch(self, calls, batch)


Scorer._launch = _faulty_launch
"""


def test_a_lost_device_ends_the_process_and_is_seen(checkpoints, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    original = ServeSettings.model_fields["model_repository"].default
    shutil.copytree(original, repository)
    with (repository / "scorer/1/model.py").open("a") as model:
        model.write(FAULT)
    log = tmp_path / "server.log"
    settings = ServeSettings(
        model=str(checkpoints("qwen3")[0]), models="scorer", device="cuda", model_repository=repository,
        http_port=0, grpc_port=0, metrics_port=0,
    )  # fmt: skip

    def score(label: int) -> None:
        inputs = {"input_ids": [1, 2, 0, 3, 0], "delimiter_indices": [2, 4], "label_token_ids": [label]}
        over_grpc(server, "scorer", inputs, {"apply_softmax": True})

    with Server(settings, log) as server:
        score(FAULTY + 1)  # the control: nothing is wrong with calls as such
        assert not server.lost_model
        with pytest.raises(Refused):
            score(FAULTY)
        until = time.monotonic() + 5
        while not server.lost_model and time.monotonic() < until:
            time.sleep(0.05)
        assert server.lost_model
        name = server.name
    assert "the device is lost" in log.read_text()
    assert leftovers(name) == []
