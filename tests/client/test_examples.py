"""The examples in the clients' docstrings, run against the fake server."""

import doctest

import pytest

from hiscore_client import AsyncScoreClient, ScoreClient
from tests.client.faulty_server import FaultyServer


@pytest.mark.parametrize("documented", [ScoreClient, AsyncScoreClient])
def test_the_example_of_a_client_runs(
    documented: type, server: FaultyServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISCORE_URL", url)
    (example,) = doctest.DocTestFinder(recurse=False).find(documented)
    assert example.examples
    said: list[str] = []
    results = doctest.DocTestRunner().run(example, out=said.append)
    assert results.failed == 0, "".join(said)
    assert server.requests
