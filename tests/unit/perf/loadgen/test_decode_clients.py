"""What sequences that run during another load got."""

import pytest

from perf.loadgen import decode_clients as decode_streams


def test_flow_counts_no_gap_between_two_streams_and_none_from_before() -> None:
    seen = decode_streams._Seen(
        [-9.0, 1.0, 2.0, 9.0, 10.0], [1, 1, 2, 3, 4], [False, True, True, False, True]
    )
    flow = decode_streams.flow_of([seen], 0.5, 10.5)
    assert flow.tokens_per_s == pytest.approx(10 / 10)
    assert flow.gap_worst == 1_000.0
    with pytest.raises(RuntimeError, match="no stream went on"):
        decode_streams.flow_of([seen], 20.0, 30.0)
