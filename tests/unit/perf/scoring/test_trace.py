"""Triton's trace to stages of a call."""

from typing import Any

import pytest

from perf.scoring.trace import split
from perf.scoring.trace_stages import read_trace, stages


def entries() -> list[dict[str, Any]]:
    """What Triton writes for one call of `score`, then one of `scorer`: children before their parent."""

    def stamps(number: int, **times: int) -> list[dict[str, Any]]:
        return [
            {"id": number, "timestamps": [{"name": name, "ns": ns * 1_000_000}]} for name, ns in times.items()
        ]

    return [
        {"id": 3, "model_name": "scorer", "parent_id": 1},
        {"id": 1, "model_name": "score"},
        *stamps(1, GRPC_WAITREAD_END=12, REQUEST_START=13, INFER_RESPONSE_COMPLETE=40),
        *stamps(3, REQUEST_START=21, COMPUTE_START=23, COMPUTE_END=24),
        {"id": 4, "model_name": "scorer"},
        *stamps(4, GRPC_WAITREAD_END=52, REQUEST_START=53, COMPUTE_START=54, INFER_RESPONSE_COMPLETE=70),
    ]


def test_stages_follow_each_other_from_asking_to_answer() -> None:
    by_text, by_ids = read_trace(entries())
    assert (by_text.model, by_ids.model) == ("score", "scorer")
    found = stages(by_text, 10_000_000, 45_000_000)
    assert list(found.values()) == [2, 11, 17, 5]
    assert found["scorer"] == 17
    assert sum(stages(by_ids, 50_000_000, 72_000_000).values()) == 22
    with pytest.raises(ValueError, match="not of this call"):
        stages(by_ids, 10_000_000, 45_000_000)


def test_the_scorer_is_taken_apart_where_its_parts_fit() -> None:
    measured = {"before": 1.0, "scorer": 10.0, "after": 2.0}
    parts = {"scorer: pack and plan": 1.0, "scorer: forward": 7.0}
    found = split(measured, parts)
    assert list(found) == ["before", *parts, "scorer: the call in, the answer out", "after"]
    assert sum(found.values()) == sum(measured.values())
    assert split(measured, {"scorer: forward": 11.0}) == {"before": 1.0, "scorer: all": 10.0, "after": 2.0}
