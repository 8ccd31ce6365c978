"""``make serve`` with API_BACKEND: the HTTP API alone, in front of models that another server has."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from tests.server.api import call
from tests.server.test_launcher_signals import LAUNCHER, serving, variables
from tests.support.processes import alive
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 6]


@dataclass(frozen=True)
class Alone:
    """A launcher's process and its API's URL."""

    process: Any
    url: str


@contextmanager
def api_alone(backend: str, checkpoint: Path, log: Path, **settings: str) -> Iterator[Alone]:
    """The HTTP API of a launcher that starts no models."""
    given = variables(checkpoint, API_BACKEND=backend, PROMPT_LABELS="a,b", **settings)
    with serving(LAUNCHER, given, log) as process:
        found = re.search(r"API (http\S+), models at (\S+)", process.ready_line)
        assert found, process.ready_line
        assert found.group(2) == backend
        yield Alone(process, found.group(1))


def test_the_api_alone_serves_the_models_of_another_server(lm: Server, tiny_lm: Path, tmp_path: Path) -> None:
    with api_alone(lm.grpc_url, tiny_lm, tmp_path / "log", API_PROCESSES="2") as api:
        body = {"query": "Is it?", "items": [" a", " b"], "label_token_ids": LABELS}
        reply = call(api, "/v1/score", body)
        with ScoreClient(lm.grpc_url) as client:
            direct = client.score("Is it?", [" a", " b"], label_token_ids=LABELS)
        # The contract's tolerance: on a CPU, sums depend on the size of a batch.
        assert np.array(reply.json["scores"]) == pytest.approx(direct.scores, abs=2e-5)
        assert call(api, "/health").json == {"status": "ok"}
        below = psutil.Process(api.process.pid).children(recursive=True)
        assert not [each for each in below if "triton" in each.name()], "no models of its own"
        api.process.send_signal(signal.SIGTERM)
        assert api.process.wait(TIMEOUT_S) == 0
        assert not alive(below)
    assert lm.fault() == ""


def test_models_that_are_not_there_are_said_so(tiny_lm: Path, tmp_path: Path) -> None:
    # Nothing listens on the discard port. The API starts all the same: the models may come later.
    with api_alone("127.0.0.1:9", tiny_lm, tmp_path / "log") as api:
        assert call(api, "/health").status == 503
        reply = call(api, "/rerank", {"query": "a", "texts": ["b"]})
        assert (reply.status, reply.json["error_type"]) == (503, "Unhealthy")
