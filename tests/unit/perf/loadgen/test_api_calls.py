"""Calls in two ways: over gRPC the models get what the API sends them of the same texts."""

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from perf.loadgen.api_calls import Call, decision_call, over_grpc, rerank_call, score_call
from tests.client.faulty_server import FaultyServer, serving
from tests.unit.api import conftest as api_fixtures

checkpoint, models = api_fixtures.checkpoint, api_fixtures.models
make_settings, make_client = api_fixtures.make_settings, api_fixtures.make_client


@pytest.fixture
def calls(checkpoint: Path) -> list[Call]:
    rng = np.random.default_rng(0)
    return [
        score_call(rng, 5, 3, 4, 500),
        rerank_call(rng, 3, 6, checkpoint, "a,b"),
        decision_call(rng, 9, 4, 5, checkpoint, 256),
    ]


def test_both_ways_ask_the_models_for_the_same(
    make_client: api_fixtures.MakeClient, models: FaultyServer, calls: list[Call]
) -> None:
    client: TestClient = make_client()
    direct = FaultyServer()
    with serving(direct) as address:
        for call in calls:
            assert client.post(call.path, json=call.body).status_code == 200
            over_grpc(address, call)()
            ours, theirs = direct.requests[-1], models.requests[-1]
            assert ours.model_name == theirs.model_name == "scorer"
            assert ours.inputs == theirs.inputs
            assert ours.raw_input_contents == theirs.raw_input_contents
            # The control: no two calls are the same.
            assert sum(each.raw_input_contents == ours.raw_input_contents for each in direct.requests) == 1
