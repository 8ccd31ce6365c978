"""Memory planned in the open, on a real server: tables in the log, one copy of the weights, and refusals."""

from pathlib import Path

import psutil
import pytest

from hiscore.launcher import LaunchError, Server
from hiscore.settings import ServeSettings
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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_context": 2**20}, r"MAX_CONTEXT is 1048576: the checkpoint's context holds"),
        ({"query_cache_bytes": 2**50}, r"host has .* left, .* are needed: keys and values 1048576.00 GiB"),
        ({"host_kv_bytes": 1_000, "models": "decode"}, "HOST_KV_BYTES is 1000 bytes, at least"),
    ],
)
def test_what_does_not_fit_does_not_start(
    settings: dict[str, int], says: str, tiny_lm: Path, tmp_path: Path
) -> None:
    chosen = {
        "http_port": 0,
        "grpc_port": 0,
        "metrics_port": 0,
        "device": "cpu",
        "models": "scorer",
        **settings,
    }
    with pytest.raises(LaunchError, match=says):
        Server(ServeSettings(model=str(tiny_lm), **chosen), tmp_path / "server.log").start()
