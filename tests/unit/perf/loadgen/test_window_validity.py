"""A window whose numbers would mislead fails: wrong scores, too few calls, another load than requested."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hiscore.settings import ServeSettings
from perf.loadgen import window as measure
from perf.loadgen.generator import Sample, poisson
from perf.loadgen.scorer_calls import Shape
from perf.loadgen.window import Answers, Meter, Point, Window, WrongScores
from perf.loadgen.window_validity import UnsoundLoad, check_count, check_open_loop

SHAPE = Shape(4, 2, 3)
GOOD = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)


def samples(count: int = 200, rate: float = 100.0, took: float = 0.005) -> list[Sample]:
    """An honest open loop: sent when due, each answered after `took` seconds."""
    due = poisson(np.random.default_rng(0), rate, 2 * count / rate)[:count]
    return [Sample(i % 8, at, at + 1e-4, at + took, scores=GOOD.copy()) for i, at in enumerate(due)]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    monkeypatch.setattr(measure, "counters", lambda server: {})
    server: Any = SimpleNamespace(settings=ServeSettings(max_batch_tokens=100, device="cpu"))
    gpu: Any = SimpleNamespace(busy=lambda begin, end: None, memory_gib=lambda begin, end: None)
    return Meter(server, gpu, 1e-3, lambda point: None, Answers())


def run(meter: Meter, sent: list[Sample], **more: Any) -> Point:
    return meter.window(Window("open", "a window", SHAPE, "pool", **more), lambda: sent)


def test_an_honest_window_passes(meter: Meter) -> None:
    point = run(meter, samples(), offered=100.0, min_calls=100)
    assert point.calls == 200
    assert point.p50 == pytest.approx(5)


def test_an_answer_that_differs_from_the_calls_first_one_fails(meter: Meter) -> None:
    sent = samples()
    assert sent[150].scores is not None
    sent[150].scores[0] += [5e-4, -5e-4]
    assert run(meter, sent).max_difference == pytest.approx(5e-4, rel=1e-3)
    sent[150].scores[0] += [5e-3, -5e-3]
    with pytest.raises(WrongScores, match="differs by"):
        run(meter, sent)


@pytest.mark.parametrize("wrong", [GOOD + 0.1, GOOD[:1], np.full((2, 2), np.nan, np.float32)])
def test_an_answer_that_is_no_softmax_of_the_items_fails(meter: Meter, wrong: Any) -> None:
    sent = samples()
    sent[3].scores = wrong
    with pytest.raises(WrongScores, match="was answered with"):
        run(meter, sent)


def test_a_call_from_the_cache_fails_a_window_of_fresh_ones(meter: Meter) -> None:
    sent = samples()
    sent[7].cached = 4
    assert run(meter, sent, fresh=False).cached_calls == 1
    with pytest.raises(WrongScores, match="1 calls were served from the cache"):
        run(meter, sent)


def test_too_few_answers_fail(meter: Meter) -> None:
    sent = samples()
    for sample in sent[:100]:
        sample.error = "UNAVAILABLE"
    check_count("a window", sent, 100)
    sent[100].error = "UNAVAILABLE"
    with pytest.raises(UnsoundLoad, match="99 calls were answered, its numbers need 100"):
        run(meter, sent, min_calls=100)


def closed_loop(rate: float, took: float, count: int = 200) -> list[Sample]:
    """A generator of one connection that sends the next call when it is due, or when the last is answered."""
    due = poisson(np.random.default_rng(0), rate, 2 * count / rate)[:count]
    found: list[Sample] = []
    for at in due:
        begin = max(at, found[-1].done if found else 0.0)
        found.append(Sample(0, at, begin, begin + took, scores=GOOD.copy()))
    return found


def test_coordinated_omission_fails(meter: Meter) -> None:
    """20 ms a call, 100 calls a second: nobody who waits for answers can send them."""
    late = closed_loop(100.0, 0.02)
    with pytest.raises(UnsoundLoad, match=r"sent up to .* ms late"):
        run(meter, late, offered=100.0)
    for sample in late:
        sample.intended = sample.sent  # what such a generator believes
    with pytest.raises(UnsoundLoad, match="calls were due where 100/s make"):
        run(meter, late, offered=100.0)
    # The same generator does no harm where it need not wait.
    run(meter, closed_loop(0.1, 0.02), offered=0.1)


def test_a_call_sent_ahead_of_its_time_fails() -> None:
    sent = samples()
    sent[5].sent = sent[5].intended - 0.001
    with pytest.raises(UnsoundLoad, match="before it was due"):
        check_open_loop("a window", sent, 100.0)


@pytest.mark.parametrize(("late", "took"), [(0.02, 0.1), (0.008, 0.005)])
def test_a_share_of_a_slow_calls_time_or_some_milliseconds_are_not_late(late: float, took: float) -> None:
    sent = samples(took=took)
    for sample in sent:
        sample.sent, sample.done = sample.intended + late, sample.intended + late + took
    check_open_loop("a window", sent, 100.0)
