"""Rings once, not before its time, and as it was last set."""

import threading
import time

from hiscore.serving.alarm import Alarm
from tests.support.timeouts import TIMEOUT_S


def test_it_rings_once_and_not_before_its_time() -> None:
    rang: list[float] = []
    ringing = threading.Semaphore(0)

    def ring() -> None:
        rang.append(time.monotonic())
        ringing.release()

    alarm = Alarm(ring, "test")
    at = time.monotonic() + 0.02
    alarm.set(at)
    assert ringing.acquire(timeout=TIMEOUT_S)
    assert rang[0] >= at
    alarm.set(time.monotonic() + 1_000)
    alarm.set(0.0)  # replaces it
    assert ringing.acquire(timeout=TIMEOUT_S)
    alarm.set(time.monotonic() + 1_000)
    alarm.close()
    assert len(rang) == 2
