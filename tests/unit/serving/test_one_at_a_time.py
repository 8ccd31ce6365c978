"""Nobody who asks waits or is forgotten, and never do two run at once."""

import threading

from hiscore.serving.one_at_a_time import OneAtATime
from tests.support.timeouts import TIMEOUT_S


def test_who_asks_meanwhile_goes_on_and_it_runs_again() -> None:
    runs, may_end, begun = [], threading.Semaphore(0), threading.Semaphore(0)

    def run() -> None:
        runs.append(threading.current_thread())
        begun.release()
        assert may_end.acquire(timeout=TIMEOUT_S)

    once = OneAtATime(run)
    runner = threading.Thread(target=once)
    runner.start()
    assert begun.acquire(timeout=TIMEOUT_S)
    once()
    once()
    may_end.release(2)
    runner.join(TIMEOUT_S)
    assert runs == [runner, runner], "twice asked for meanwhile, run once more, by the same thread"


def test_nobody_is_forgotten() -> None:
    waiting, done, running = [0], [0], threading.Lock()
    changed = threading.Lock()

    def run() -> None:
        assert running.acquire(blocking=False), "two run at once"
        with changed:
            done[0] += waiting[0]
            waiting[0] = 0
        running.release()

    once = OneAtATime(run)

    def ask() -> None:
        for _ in range(2_000):
            with changed:
                waiting[0] += 1
            once()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert (waiting, done) == ([0], [8_000])


def test_it_can_be_kept_from_running() -> None:
    ran: list[int] = []
    once = OneAtATime(lambda: ran.append(1))
    with once.lock:
        once()
        assert not ran
    once()
    assert ran == [1]
