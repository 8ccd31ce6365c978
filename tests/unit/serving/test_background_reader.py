"""What takes long to read is read behind everyone's back, in order, and only so much of it waits."""

import threading

import pytest

from hiscore.errors import Code, RequestError
from hiscore.serving.background_reader import MAX_WAITING, BackgroundReader
from tests.support.timeouts import TIMEOUT_S


def test_as_much_as_may_wait_is_read_in_order_and_the_rest_refused() -> None:
    reader, done = BackgroundReader("large texts"), []
    reached, gate = threading.Event(), threading.Event()

    def first() -> None:
        reached.set()
        assert gate.wait(TIMEOUT_S)
        done.append(0)

    reader.submit(first)
    assert reached.wait(TIMEOUT_S)
    for number in range(1, MAX_WAITING + 1):
        reader.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    with pytest.raises(RequestError, match=f"the server is full: {MAX_WAITING} large texts wait") as raised:
        reader.submit(lambda: done.append(-1))
    assert raised.value.code is Code.UNAVAILABLE
    assert done == []
    gate.set()
    reader.close()
    assert done == list(range(MAX_WAITING + 1))
