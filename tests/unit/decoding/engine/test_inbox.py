"""The inbox: bounded, closed only to new calls, and it wakes the engine for anything that comes, or is late."""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.batching import request_order
from hiscore.decoding.engine import inbox as inbox_module
from hiscore.decoding.engine.inbox import Deadlines, Inbox
from hiscore.errors import Code, RequestError
from hiscore.server.load_board import LoadBoard
from tests.support.decode_worker import sequence_of
from tests.support.timeouts import TIMEOUT_S


def fill(inbox: Inbox) -> int:
    """How many calls it still takes."""
    for count in range(100):
        try:
            inbox.put(sequence_of())
        except RequestError:
            return count
    raise AssertionError("it has no bound")


def test_at_first_as_many_as_may_wait_and_as_can_start() -> None:
    inbox = Inbox(max_queue=3, startable=2)
    assert fill(inbox) == 5
    assert inbox.num_refused == 1
    with pytest.raises(RequestError, match="the queue is full: 3 calls wait") as refused:
        inbox.put(sequence_of())
    assert refused.value.code is Code.UNAVAILABLE
    assert inbox.num_refused == 2


def test_a_full_instance_refuses_only_what_no_other_could_take(tmp_path: Path) -> None:
    boards = [LoadBoard(tmp_path, "decode", 1) for _ in range(2)]
    full, other = (Inbox(max_queue=3, startable=2, board=board) for board in boards)
    for _ in range(5):
        full.put(sequence_of())
    # It is not asked again before the other is full, too.
    full.put(sequence_of())
    assert full.num_refused == 0
    assert [board.is_next for board in boards] == [False, True]
    # The other is full after its own calls alone.
    for _ in range(5):
        other.put(sequence_of())
    for inbox in (full, other):
        with pytest.raises(RequestError, match="the queue is full"):
            inbox.put(sequence_of())
    assert [board.is_next for board in boards] == [True, True]


def test_a_call_that_waits_is_more_of_a_load_than_several_that_run(tmp_path: Path) -> None:
    boards = [LoadBoard(tmp_path, "decode", 1) for _ in range(2)]
    waits, runs = (Inbox(max_queue=3, startable=2, board=board) for board in boards)
    runs.update_room(0, 1, running=3.5)
    waits.update_room(1, 0, running=0.0)
    assert [board.is_next for board in boards] == [False, True]
    runs.put(sequence_of())
    assert [board.is_next for board in boards] == [True, False]


@pytest.mark.parametrize(
    ("waiting", "startable", "arrived", "room"),
    [
        (0, 0, 0, 3),
        (0, 2, 0, 5),
        (2, 0, 0, 1),
        (0, 0, 2, 1),  # arrived while the engine launched: they wait as well
        (1, 0, 2, 0),
        (3, 0, 0, 0),
        (5, 0, 0, 0),
    ],
)
def test_room(waiting: int, startable: int, arrived: int, room: int) -> None:
    inbox = Inbox(max_queue=3, startable=2)
    for _ in range(arrived):
        inbox.put(sequence_of())
    inbox.update_room(waiting, startable)
    assert fill(inbox) == room


def test_everything_is_taken_once() -> None:
    inbox = Inbox(3, 0)
    first, second = sequence_of(), sequence_of()
    inbox.put(first)
    inbox.put(second)
    inbox.cancel("caller")
    assert inbox.take(idle=True, poll=False) == ([first, second], ["caller"])
    assert inbox.take(idle=False, poll=False) == ([], [])


def test_a_closed_inbox_refuses_more_but_what_it_holds_is_taken() -> None:
    inbox = Inbox(3, 0)
    inbox.put(call := sequence_of())
    inbox.close()
    with pytest.raises(RequestError, match="shutting down") as refused:
        inbox.put(sequence_of())
    assert refused.value.code is Code.UNAVAILABLE
    assert inbox.take(idle=True, poll=False) == ([call], [])
    # The engine now runs that call.
    assert inbox.take(idle=False, poll=False) == ([], [])
    inbox.cancel("caller")
    assert inbox.take(idle=False, poll=True) == ([], ["caller"])
    assert inbox.take(idle=True, poll=False) is None


def test_a_failed_inbox_gives_back_what_was_not_taken() -> None:
    inbox = Inbox(3, 0)
    inbox.put(call := sequence_of())
    assert inbox.fail() == [call]
    inbox.close()
    with pytest.raises(RequestError, match="decode has stopped") as refused:
        inbox.put(sequence_of())
    assert refused.value.code is Code.INTERNAL
    assert inbox.num_refused == 0


def test_polling_blocks_no_longer_than_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(3, 0)
    waits: list[float | None] = []
    wait = inbox._changed.wait

    def record(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(inbox._changed, "wait", record)
    assert inbox.take(idle=False, poll=False) == ([], [])
    assert waits == []
    assert inbox.take(idle=False, poll=True) == ([], [])
    assert waits
    assert all(0 < each <= inbox_module.POLL_S for each in waits if each is not None)
    assert None not in waits


def put(inbox: Inbox) -> None:
    inbox.put(sequence_of())


def cancel(inbox: Inbox) -> None:
    inbox.cancel("caller")


@pytest.mark.parametrize(
    ("wake", "poll"), [(put, False), (put, True), (cancel, False), (cancel, True), (Inbox.close, False)]
)
def test_whatever_comes_wakes_the_engine(
    wake: Callable[[Inbox], None], poll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "POLL_S", 10 * TIMEOUT_S)
    inbox, taken = Inbox(3, 0), []
    thread = threading.Thread(target=lambda: taken.append(inbox.take(idle=not poll, poll=poll)), daemon=True)
    thread.start()
    wake(inbox)
    thread.join(TIMEOUT_S)
    assert len(taken) == 1
    if wake is Inbox.close:
        assert taken == [None]
    else:
        assert any(taken[0] or ())


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("spare", [request_order.SPARE, math.inf])
def test_ended_calls_are_forgotten(spare: float, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all had their reply_to at the same address. The control keeps their times until they have come."""
    monkeypatch.setattr(request_order, "SPARE", spare)
    deadlines, live = Deadlines(), {}
    stays = sequence_of(1, "stays", deadline=50_000.0, start_by=1e9)
    live[id(stays.reply_to)] = stays
    deadlines.add(stays)
    names = ["always the same"] * 10_000 if same else [object() for _ in range(10_000)]
    for now, name in enumerate(names):
        call = live[id(name)] = sequence_of(1, name, deadline=1e6 + now, start_by=2e6 + now)
        deadlines.add(call)
        assert not list(deadlines.expired(now, live))
        del live[id(name)]
    assert (len(deadlines._heap) < 200) == (spare < math.inf)
    # What lives is late when it is.
    assert not list(deadlines.expired(49_999.0, live))
    assert [late for late, _ in deadlines.expired(50_000.0, live)] == [stays]
