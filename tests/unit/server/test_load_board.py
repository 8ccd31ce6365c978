"""The loads by which calls are dealt among a model's instances."""

import math
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from hiscore.server.load_board import MAX_INSTANCES, LoadBoard
from tests.support.timeouts import TIMEOUT_S

RUN_AT_ONCE, MAX_QUEUE = 4, 8
CALLS = 2_000


def boards(directory: Path, count: int, server: int = 1) -> list[LoadBoard]:
    return [LoadBoard(directory, "decode", server) for _ in range(count)]


def test_an_instance_alone_is_always_next_and_nobody_else_has_room() -> None:
    board = LoadBoard()
    for load in (0.0, 7.0, math.inf):
        board.publish(load)
        assert board.is_next
        assert not board.others_have_room()


def test_those_with_the_least_to_do_are_next(tmp_path: Path) -> None:
    first, second, third = boards(tmp_path, 3)
    assert [board.is_next for board in (first, second, third)] == [True, True, True]
    for board, load in ((first, 2.0), (second, 1.0), (third, 1.0)):
        board.publish(load)
    assert [board.is_next for board in (first, second, third)] == [False, True, True]


def test_there_is_room_elsewhere_until_all_are_full(tmp_path: Path) -> None:
    first, second = boards(tmp_path, 2)
    first.publish(math.inf)
    assert first.others_have_room()
    assert not first.is_next
    second.publish(math.inf)
    assert not first.others_have_room()
    # All are next, as places that no instance has do not count: whoever is called refuses.
    assert first.is_next
    assert second.is_next


def test_who_waits_returns_when_the_others_have_as_much_to_do(tmp_path: Path) -> None:
    first, second = boards(tmp_path, 2)
    first.publish(3.0)
    loads_at_return = []

    def wait() -> None:
        first.wait_for_turn()
        loads_at_return.append(second._loads[second._own])

    thread = Thread(target=wait)
    thread.start()
    for load in (1.0, 2.0, 3.0):
        second.publish(load)
    thread.join(TIMEOUT_S)
    assert loads_at_return == [3.0]


def test_instances_in_other_processes_are_seen(tmp_path: Path) -> None:
    board = LoadBoard(tmp_path, "decode", 1)
    board.publish(5.0)
    code = (
        "from pathlib import Path; from hiscore.server.load_board import LoadBoard;"
        f"board = LoadBoard(Path({str(tmp_path)!r}), 'decode', 1); board.publish(4.0); print(board.is_next)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "True"
    assert not board.is_next


def test_models_and_servers_have_boards_of_their_own(tmp_path: Path) -> None:
    busy = LoadBoard(tmp_path, "decode", 1)
    busy.publish(5.0)
    LoadBoard(tmp_path, "scorer", 1)
    LoadBoard(tmp_path, "decode", 2)
    assert busy.is_next
    LoadBoard(tmp_path, "decode", 1)
    assert not busy.is_next


def test_too_many_instances_are_refused(tmp_path: Path) -> None:
    boards(tmp_path, MAX_INSTANCES)
    with pytest.raises(ValueError, match=f"at most {MAX_INSTANCES} instances"):
        LoadBoard(tmp_path, "decode", 1)


class Instance:
    """Runs a few calls at once; others wait. The clock is simulated."""

    def __init__(self, board: LoadBoard) -> None:
        self.board, self.running, self.waiting = board, list[float](), deque[float]()

    def advance(self, now: float) -> None:
        """End what is due, and start what waits for it."""
        while self.running and (end := min(self.running)) <= now:
            self.running.remove(end)
            if self.waiting:
                self.running.append(end + self.waiting.popleft())
        self.publish()

    def take(self, now: float, seconds: float) -> bool:
        """Whether a call is taken: it runs, waits, or there is room nowhere else."""
        if len(self.running) < RUN_AT_ONCE:
            self.running.append(now + seconds)
        elif len(self.waiting) < MAX_QUEUE or self.board.others_have_room():
            self.waiting.append(seconds)
        else:
            return False
        self.publish()
        return True

    def publish(self) -> None:
        full = len(self.running) == RUN_AT_ONCE and len(self.waiting) >= MAX_QUEUE
        self.board.publish(math.inf if full else len(self.running) + 4 * len(self.waiting))


def refusals(directory: Path, load: float, by_load: bool) -> int:
    """How many calls two instances refuse behind a queue like Triton's, by load or in turn."""
    rng = np.random.default_rng(0)
    # Without a directory each is alone.
    instances = [Instance(LoadBoard(directory if by_load else None, "decode", 1)) for _ in range(2)]
    ready = deque(instances)  # their `execute` has returned
    held: list[Instance] = []
    now, refused = 0.0, 0
    lengths = rng.lognormal(0.0, 1.0, CALLS)
    gaps = rng.exponential(lengths.mean() / (2 * RUN_AT_ONCE * load), CALLS)
    for gap, seconds in zip(gaps, lengths, strict=True):
        now += gap
        for instance in instances:
            instance.advance(now)
        ready.extend(instance for instance in held if instance.board.is_next)
        held = [instance for instance in held if not instance.board.is_next]
        chosen = ready.popleft()
        refused += not chosen.take(now, seconds)
        held.append(chosen)
        ready.extend(instance for instance in held if instance.board.is_next)
        held = [instance for instance in held if not instance.board.is_next]
    return refused


def test_two_instances_at_70_percent_refuse_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    assert refusals(tmp_path, 0.7, by_load=True) == 0
    # Control: dealt in turn, one is full while the other has room.
    assert refusals(tmp_path, 0.7, by_load=False) > 0
    # Control: they refuse what is too much for both.
    assert refusals(tmp_path / "b", 1.3, by_load=True) > 0
