"""The first example of the README, by the Python SDK."""

import json
import re
from pathlib import Path

import pytest

from hiscore.launcher import Server
from hiscore_client import ScoreClient

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]


def test_the_first_example_of_the_readme_is_right(server: Server) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    found = re.search(r'"query": (".*?"), "items": (\[.*?\]), "labels": (\[.*?\])', readme)
    assert found
    query, items, labels = map(json.loads, found.groups())
    assert labels == [" fruit", " tool"]
    with ScoreClient(server.grpc_url) as client:
        apple, hammer = client.score(query, items, labels=labels, apply_softmax=True).scores
        assert apple[0] > 0.8 > 0.2 > hammer[0]
        # The control: asked in a way that does not end where the answer begins, it calls an apple no fruit.
        old = client.score(
            "Is this a fruit? ", ["apple", "hammer"], labels=[" Yes", " No"], apply_softmax=True
        )
        assert old.scores[0, 0] < 0.5
