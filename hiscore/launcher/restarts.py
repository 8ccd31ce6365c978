"""When a server that has failed may be started again: pauses that grow, and an end to it."""

from collections import deque

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class RestartPolicy:
    """At most `most` restarts within any `window_s` seconds; the pause before each is twice the one before.

    A server that has run well for a whole window begins anew with the shortest pause.
    """

    def __init__(self, most: int, window_s: float) -> None:
        self._most, self._window_s = most, window_s
        self._recent: deque[float] = deque()

    def next_pause(self, now: float) -> float | None:
        """Seconds to wait before the next restart, which is counted from `now` on; None: give up."""
        while self._recent and self._recent[0] <= now - self._window_s:
            self._recent.popleft()
        if len(self._recent) >= self._most:
            return None
        self._recent.append(now)
        return float(min(FIRST_PAUSE_S * 2 ** (len(self._recent) - 1), LONGEST_PAUSE_S))
