"""Deadlines that pass while the server computes, whatever it takes: what the SDK and the command make of it."""

from pathlib import Path

import pytest

from hiscore.launcher import Server
from hiscore_client import DeadlineExceeded, ScoreClient
from tests.server.conftest import StartServer
from tests.server.held import Holdable
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]


@pytest.fixture
def held(start_server: StartServer, tiny_lm: Path, holdable: Holdable) -> Server:
    return start_server(
        tiny_lm,
        models="score,tokenizer,scorer",
        model_repository=holdable.repository,
        query_cache_bytes=2**24,
    )


def test_a_deadline_passes(held: Server, holdable: Holdable) -> None:
    """The server goes on well."""
    with ScoreClient(held.grpc_url) as client:
        with holdable.held(), pytest.raises(DeadlineExceeded):
            client.score_ids([1], [[2]], LABELS, timeout=1)
        assert client.score_ids([1], [[2]], LABELS, timeout=TIMEOUT_S).scores.shape == (1, 3)
