"""Memory planned in the open, on a real server: tables in the log, one copy of the weights, and refusals."""

from pathlib import Path

import psutil
import pytest

from hiscore_client import ScoreClient

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]


def test_scorer_and_decode_plan_together_and_share_their_weights(start_server, tiny_lm: Path) -> None:
    server = start_server(tiny_lm, query_cache_bytes=2**20, max_context=1_024)
    text = server.log_path.read_text()
    assert text.count("memory on host:") == 2
    assert text.count("the weights are those of the other model, mapped") == 1
    assert "at most 32 sequences of at most 1024 tokens" in text
    # Both map the one file in memory.
    children = psutil.Process(server.pid).children(recursive=True)
    maps = [Path(f"/proc/{child.pid}/maps").read_text() for child in children]
    assert sum("memfd:hiscore-weights" in each for each in maps) == 2
    with ScoreClient(server.grpc_url) as client:
        assert client.score_ids([5, 6], [[7], [8]], [1, 2]).scores.shape == (2, 2)
        assert (
            sum(len(chunk.token_ids) for chunk in client.generate([5, 6], max_tokens=3, ignore_eos=True)) == 3
        )
        with pytest.raises(Exception, match=r"1025 tokens together: at most 1024 \(MAX_CONTEXT\)"):
            client.score_ids([5] * 1_000, [[7] * 25], [1])
