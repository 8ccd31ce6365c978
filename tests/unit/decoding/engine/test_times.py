"""How long callers waited, told by an engine whose worker is slow on purpose."""

import time

from hiscore.decoding.engine.times import HISTOGRAMS, Times
from hiscore.decoding.sequence import Output
from hiscore.errors import RequestError
from tests.support.decode_worker import HashWorker, sequence_of
from tests.unit.decoding.engine.test_engine import Callers, call, running


def test_a_call_is_timed_from_its_arrival() -> None:
    times, one = Times(), sequence_of(arrived=time.monotonic() - 1_000)
    times.leave_queue([one])
    times.leave_queue([one])  # the next chunk of its prompt
    for _ in range(3):
        times.token(one)
    times.end(one, Output([1], "", "stop"))
    assert [each.count for each in (times.queue_wait, times.first_token, times.call)] == [1, 1, 1]
    assert times.between_tokens.count == 2
    assert min(times.queue_wait.sum, times.first_token.sum, times.call.sum) >= 1_000
    assert times.between_tokens.sum < times.first_token.sum


def test_what_fails_or_is_cancelled_is_no_answer() -> None:
    times = Times()
    times.end(sequence_of(), RequestError("no"))
    times.end(sequence_of(), Output([], "", "cancelled"))
    assert times.call.count == 0


def test_an_engine_times_every_call() -> None:
    callers = Callers()
    with running(HashWorker(), callers) as engine:
        for index in range(5):
            engine.submit(call([index], max_tokens=6, ignore_eos=True), f"caller {index}")
        callers.wait(lambda: len(callers.ends) == 5)
        times = engine.times
    assert (times.queue_wait.count, times.first_token.count, times.call.count) == (5, 5, 5)
    assert times.between_tokens.count == sum(map(len, callers.tokens.values())) - 5


def test_every_histogram_has_a_metric() -> None:
    assert set(HISTOGRAMS) == set(vars(Times()))
