"""Pauses between restarts: they double, have an end, and are forgotten after a quiet window."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hiscore.launcher.restarts import RestartPolicy


def test_pauses_double_up_to_a_minute_then_it_gives_up() -> None:
    policy = RestartPolicy(most=9, window_s=600)
    assert [policy.next_pause(now=0) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, None]


def test_a_quiet_window_begins_anew() -> None:
    policy = RestartPolicy(most=2, window_s=600)
    assert [policy.next_pause(now) for now in (0, 10, 599, 600, 601, 1_199)] == [1, 2, None, 2, None, 2]
    assert policy.next_pause(now=5_000) == 1


@given(st.lists(st.floats(0, 1_000), max_size=30), st.integers(1, 5), st.integers(1, 100))
def test_never_more_than_allowed_within_any_window(gaps: list[float], most: int, window_s: int) -> None:
    policy, now, restarted = RestartPolicy(most, window_s), 0.0, []
    for gap in gaps:
        now += gap
        if policy.next_pause(now) is not None:
            restarted.append(now)
    assert all(sum(first <= each < first + window_s for each in restarted) <= most for first in restarted)
    assert all(earlier <= later for earlier, later in pairwise(restarted))
