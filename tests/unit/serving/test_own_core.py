"""On which core the thread that calls a model stays."""

import os
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from hiscore.models.server_resources import Instance
from hiscore.serving.own_core import stay_on

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("instance", "ranks", "core"),
    [
        (Instance("cuda:0"), 1, 7),
        (Instance("cuda:2"), 1, 3),
        (Instance("cuda:2"), 2, 5),
        (Instance("cpu", 1, 3), 1, 5),
    ],
)
def test_each_instance_has_its_own(instance: Instance, ranks: int, core: int) -> None:
    with mock.patch("os.sched_setaffinity") as moved:
        stay_on([7, 5, 3], instance, ranks)
        moved.assert_called_once_with(0, {core})
        moved.reset_mock()
        stay_on([], instance, ranks)
        moved.assert_not_called()


def test_no_other_thread_moves() -> None:
    def moved() -> set[int]:
        stay_on(CORES[-1:], Instance("cuda:0"), 1)
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(moved).result() == {CORES[-1]}
    assert os.sched_getaffinity(0) == set(CORES)
