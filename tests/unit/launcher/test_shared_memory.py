"""A /dev/shm that runs full is told once, and again after it has had room."""

import logging

import pytest

from hiscore.launcher.shared_memory import CHECK_EVERY_S, SharedMemoryWatch


def test_it_is_told_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    now, said = 100.0, []
    free = 0

    watch = SharedMemoryWatch(64 << 20, lambda: free, lambda: now)
    for each in (64 << 20, (64 << 20) - 1, 0, 1 << 30, 10 << 20):
        free = each
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            watch.check()
        said.append([record.getMessage().partition(":")[0] for record in caplog.records])
        now += CHECK_EVERY_S
    assert said == [[], ["/dev/shm has 63 MiB left"], [], [], ["/dev/shm has 10 MiB left"]]


def test_it_looks_every_few_seconds_only() -> None:
    looks: list[int] = []
    now = 100.0
    watch = SharedMemoryWatch(1, lambda: looks.append(1) or 9, lambda: now)
    for _ in range(10):
        watch.check()
        now += CHECK_EVERY_S / 5
    assert len(looks) == 2
