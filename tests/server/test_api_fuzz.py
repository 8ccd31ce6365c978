"""Requests made from the OpenAPI description: never a 500, and no other caller is harmed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from tests.server.api import api_of, call
from tests.support.api_bodies import BODIES
from tests.support.client_environment import ask

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

CANARY = {"query": [1, 2, 3], "items": [[4], [5, 6]], "label_token_ids": [7, 8]}


@pytest.fixture(scope="module")
def api(lm: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    # The small model has no token for Yes.
    log = tmp_path_factory.mktemp("api") / "api.log"
    with api_of(lm, log, labels=("a", "b"), prompt_template=str(template(log.parent))) as running:
        yield running


def template(directory: Path) -> Path:
    path = directory / "own.jinja"
    path.write_text("{{ instruction }} {{ query }} {{ document }}\n\n<|im_end|>")
    return path


def test_no_request_breaks_a_route_or_another_caller(api: Api) -> None:
    alone = call(api, "/v1/score", CANARY).json["scores"]
    canary = {"path": "/v1/score", "body": CANARY}
    found = ask("fuzz", url=api.url, examples=40, canary=canary, bodies=BODIES)
    assert found["wrong"] == []
    assert len(found["heard"]) > 100
    # The contract's tolerance: on a CPU, sums depend on the size of a batch.
    assert np.array(found["heard"]) == pytest.approx(
        np.broadcast_to(alone, (len(found["heard"]), 2, 2)), abs=2e-5
    )
    # The control: requests of both kinds were made.
    assert set(found["seen"]) == set(call(api, "/openapi.json").json["paths"])
    for path, counts in found["seen"].items():
        assert ({"200", "400"} if path in BODIES else {"400"}) <= set(counts), path
    # Another control: the canary's answer depends on what it asks.
    other = call(api, "/v1/score", {**CANARY, "query": [1, 2, 4]}).json["scores"]
    assert np.abs(np.array(other) - alone).max() > 1e-3
