"""Evaluations by likelihood: lm-evaluation-harness through the API, and by its own model, example by example."""

import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.api import api_of
from tests.support.client_environment import ask

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]
# Of one token's log-probability: what float32 sums in another order may differ by.
TOLERANCE = 2e-5
# Tokens of the longest continuation.
LONGEST = 400


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the harness' data sets need CPython 3.11")
def test_every_example_is_that_of_the_harness_own_model(server: Server, smollm: Path, tmp_path: Path) -> None:
    with api_of(server, tmp_path / "api.log") as api:
        site = sysconfig.get_paths()["purelib"]
        found = ask("evaluate", url=api.url, checkpoint=str(smollm), torch=site, every=60)
    assert found["items"] >= 4
    for kind, per_item in {"multiple_choice": 4, "loglikelihood": 1, "loglikelihood_rolling": 1}.items():
        own, here = found["own"][kind], found["here"][kind]
        assert len(own) == len(here) == found["items"]
        for theirs, ours in zip(own, here, strict=True):
            assert len(theirs) == len(ours) == per_item
            if kind == "loglikelihood_rolling":
                np.testing.assert_allclose(ours, theirs, atol=LONGEST * TOLERANCE, rtol=0)
                continue
            np.testing.assert_allclose(
                [value for value, _ in ours], [value for value, _ in theirs], atol=LONGEST * TOLERANCE, rtol=0
            )
            assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    told = [*found["own"]["loglikelihood"], *found["own"]["multiple_choice"]]
    assert {greedy for each in told for _, greedy in each} == {True, False}
