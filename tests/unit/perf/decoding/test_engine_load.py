"""An engine in this process under a load."""

from perf.decoding.engine_load import between


def test_gaps_are_taken_while_all_streams_run() -> None:
    gaps = between([[0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 7.0]])
    assert sorted(gaps.tolist()) == [1.0, 1.0]
