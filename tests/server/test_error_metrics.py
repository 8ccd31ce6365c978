"""A refused call is counted once, by the model that refused it, and never as an answer."""

import re
from collections import Counter

import pytest

from hiscore.launcher import Server
from hiscore_client import InvalidRequest, ScoreClient
from perf.loadgen.exports import page
from tests.server.counters import settled

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

REFUSED = 7
ANSWERED = 3
LINE = re.compile(r"^(hiscore_errors_total|hiscore_call_seconds_count)\{(.*)\} (\S+)$", re.MULTILINE)


def read(server: Server) -> Counter[tuple[str, str]]:
    """Counts by model and what was counted: "answered", or the code of an error."""
    counts: Counter[tuple[str, str]] = Counter()
    for _, labels, value in LINE.findall(page(server.metrics_url)):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        counts[named["model"], named.get("reason", "answered")] += int(float(value))
    return counts


def test_each_model_counts_what_it_refuses_and_what_it_answers(lm: Server) -> None:
    before = settled(lm, read)
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
    assert settled(lm, read) - before == {
        ("tokenizer", "INVALID_ARG"): REFUSED,
        ("scorer", "INVALID_ARG"): REFUSED,
        ("decode", "INVALID_ARG"): REFUSED,
        ("tokenizer", "answered"): ANSWERED,
        ("scorer", "answered"): ANSWERED,
        ("decode", "answered"): ANSWERED,
    }
