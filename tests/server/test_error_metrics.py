"""A refused call is counted once, by the model that refused it, and never as an answer."""

import re
import time
import urllib.request
from collections import Counter

import pytest

from hiscore.launcher import Server
from hiscore_client import InvalidRequest, ScoreClient

pytestmark = pytest.mark.server

REFUSED = 7
ANSWERED = 3
LINE = re.compile(r"^(hiscore_errors_total|hiscore_call_seconds_count)\{(.*)\} (\S+)$", re.MULTILINE)


def read(server: Server) -> Counter[tuple[str, str]]:
    """Counts by model and what was counted: "answered", or the code of an error."""
    with urllib.request.urlopen(server.metrics_url) as response:
        found = LINE.findall(response.read().decode())
    counts: Counter[tuple[str, str]] = Counter()
    for _, labels, value in found:
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        counts[named["model"], named.get("reason", "answered")] += int(float(value))
    return counts


def risen(server: Server, before: Counter[tuple[str, str]], calls: int) -> dict[tuple[str, str], int]:
    """What has risen once as many calls are counted; metrics are exported once a second."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        now = read(server)
        rise = {key: count - before[key] for key, count in now.items() if count > before[key]}
        if sum(rise.values()) >= calls:
            break
        time.sleep(0.1)
    time.sleep(2.5)  # what is counted twice would be by now
    now = read(server)
    return {key: count - before[key] for key, count in now.items() if count > before[key]}


def test_each_model_counts_what_it_refuses_and_what_it_answers(lm: Server) -> None:
    before = read(lm)
    with ScoreClient(lm.grpc_url) as client:
        for _ in range(REFUSED):
            with pytest.raises(InvalidRequest):
                client.score("query", ["item"], labels=["two tokens at least"])
            with pytest.raises(InvalidRequest):
                client.score_ids([1], [[2]], [999_999])
            with pytest.raises(InvalidRequest):
                [*client.generate([999_999])]
        for _ in range(ANSWERED):
            client.score("query", ["item"], label_token_ids=[1])
            assert [*client.generate([1, 2], max_tokens=2)]
    assert risen(lm, before, 3 * REFUSED + 3 * ANSWERED) == {
        ("tokenizer", "INVALID_ARG"): REFUSED,
        ("scorer", "INVALID_ARG"): REFUSED,
        ("decode", "INVALID_ARG"): REFUSED,
        ("tokenizer", "answered"): ANSWERED,
        ("scorer", "answered"): ANSWERED,
        ("decode", "answered"): ANSWERED,
    }
