import threading
from collections.abc import Iterator

import pytest

from hiscore_client import InvalidRequest, Overloaded
from hiscore_client.concurrent_calls import answer_in_order
from hiscore_client.records import Answer
from tests.support.timeouts import TIMEOUT_S


def test_answers_are_in_order_whatever_finishes_first() -> None:
    others_done = threading.Semaphore(0)

    def call(record: int) -> int:
        if record == 0:
            for _ in range(3):
                assert others_done.acquire(timeout=TIMEOUT_S)
        else:
            others_done.release()
        return record * 10

    assert list(answer_in_order(call, range(4), 4)) == [Answer(record, record * 10) for record in range(4)]


def test_a_failure_is_the_answer_of_its_record_alone() -> None:
    bad = InvalidRequest("not JSON")
    full = Overloaded("full")

    def call(record: int) -> int:
        if record == 2:
            raise full
        return record

    assert list(answer_in_order(call, [1, bad, 2, 3], 2)) == [
        Answer(1, 1),
        Answer(None, bad),
        Answer(2, full),
        Answer(3, 3),
    ]


def test_input_is_read_no_further_ahead_than_calls_may_be_in_flight() -> None:
    read: list[int] = []
    release = threading.Event()
    started = threading.Semaphore(0)

    def records() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    def call(record: int) -> int:
        started.release()
        assert release.wait(TIMEOUT_S)
        return record

    answers = answer_in_order(call, records(), 3)
    collected: list[int] = []
    reader = threading.Thread(target=lambda: collected.extend(answer.outcome for answer in answers))  # type: ignore[misc]
    reader.start()
    for _ in range(3):
        assert started.acquire(timeout=TIMEOUT_S)
    # Three in flight, one of them waited for, three in the queue behind it, and one that waits for the queue.
    assert len(read) <= 5
    release.set()
    reader.join(TIMEOUT_S)
    assert collected == list(range(100))


def test_an_input_that_fails_ends_the_answers_with_its_error() -> None:
    def records() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    answers = answer_in_order(lambda record: record, records(), 2)
    assert next(answers) == Answer(1, 1)
    with pytest.raises(OSError, match="gone"):
        next(answers)


def test_leaving_early_starts_no_further_calls() -> None:
    called: list[int] = []

    def call(record: int) -> int:
        called.append(record)
        return record

    answers = answer_in_order(call, iter(range(10_000)), 2)
    next(answers)
    answers.close()
    assert len(called) < 100
