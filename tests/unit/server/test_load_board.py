"""The loads by which calls are dealt among a model's instances."""

import math
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from hiscore.server.load_board import MAX_INSTANCES, LoadBoard
from tests.support.timeouts import TIMEOUT_S


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
