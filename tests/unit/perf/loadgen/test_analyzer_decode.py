"""perf_analyzer's export of sequences: times are those of the export."""

from dataclasses import replace

import pytest

from perf.loadgen.analyzer_decode import Generation, Prompts, as_samples, per_token, summarise, times
from tests.unit.perf.loadgen.exports import exported

PROMPTS = Prompts([[1, 2, 3], [4, 5, 6]], max_tokens=4)
TWO = [
    exported([4, 5, 6], 10.0, (10.5, 7), (10.6, [8, 9]), (10.7, 3), (10.8, [])),
    exported([1, 2, 3], 11.0, (11.3, 5), (11.5, 6), (11.6, 1), (11.7, 2), due=10.9),
]


def test_an_export_becomes_streams() -> None:
    first, second = PROMPTS.read(TWO)
    assert (first.prompt, first.ids, first.finish_reason) == (1, [7, 8, 9, 3], "length")
    assert first.arrivals == pytest.approx([10.5, 10.6, 10.7])  # the empty last response is no token
    assert second.ids == [5, 6, 1, 2]
    with pytest.raises(KeyError):
        PROMPTS.read([exported([9, 9, 9], 1.0, (2.0, 1))])


def test_a_streams_numbers() -> None:
    served = summarise("a window", PROMPTS.read(TWO), prompt=3)
    assert served.seconds == pytest.approx(1.7)
    assert served.output_tokens_per_s == pytest.approx(8 / 1.7)
    assert served.input_tokens_per_s == pytest.approx(6 / 1.7)
    assert served.ttft.mean == pytest.approx((500 + 400) / 2)  # the second was due 0.1 s before it was sent
    # 0.2 s for three tokens after the first response, 0.4 s for three.
    assert served.tpot.mean == pytest.approx(1e3 * (0.2 / 3 + 0.4 / 3) / 2)
    assert served.itl.worst == pytest.approx(200)
    assert served.tokens_per_response == pytest.approx(8 / 7)
    assert served.concurrency == pytest.approx((0.7 + 0.8) / 1.7)
    assert served.late_p99 == pytest.approx(100, rel=0.02)


def test_sequences_that_did_not_end_well_are_failures() -> None:
    good, bad = PROMPTS.read(TWO)
    cancelled = replace(bad, finish_reason="cancelled")
    served = summarise("a window", [good, cancelled], prompt=3)
    assert (served.streams, served.failed) == (2, 1)
    assert [sample.error for sample in as_samples([good, cancelled])] == ["", "ended by 'cancelled'"]
    with pytest.raises(RuntimeError, match="no sequence ended"):
        summarise("a window", [cancelled], prompt=3)
    with pytest.raises(ValueError, match="no time"):
        times([])


def test_tokens_of_the_first_response_are_not_waited_for() -> None:
    stream = Generation(0, 0.0, 0.0, [1.0, 2.0], [[1, 2, 3], [4, 5]], "length")
    assert per_token(stream) == 0.5
