"""Times that callers of decode wait: for a place, for the first token, for each further one, and in all."""

import time
from collections.abc import Iterable

from hiscore.decoding.sequence import Output, Sequence
from hiscore.errors import RequestError
from hiscore.histogram import OF_CALLS, TOKEN_SECONDS, Histogram

# Attribute of `Times` -> (metric, help).
HISTOGRAMS = OF_CALLS | {
    "first_token": ("hiscore_decode_first_token_seconds", "Seconds from a call's arrival to its first token"),
    "between_tokens": (
        "hiscore_decode_between_tokens_seconds",
        "Seconds from a sequence's token to its next",
    ),
}


class Times:
    """Histograms in seconds, written by the engine's thread; `call` leaves out failed and cancelled calls."""

    def __init__(self) -> None:
        self.queue_wait, self.first_token, self.call = Histogram(), Histogram(), Histogram()
        self.between_tokens = Histogram(TOKEN_SECONDS)

    def leave_queue(self, sequences: Iterable[Sequence]) -> None:
        """Observe the queue's wait of sequences that are in a prefill for the first time."""
        for sequence in sequences:
            if not sequence.has_left_queue:
                sequence.has_left_queue = True
                self.queue_wait.observe(time.monotonic() - sequence.call.arrived)

    def token(self, sequence: Sequence) -> None:
        """Observe the time of a sequence's new token."""
        now = time.monotonic()
        if sequence.last_token_at:
            self.between_tokens.observe(now - sequence.last_token_at)
        else:
            self.first_token.observe(now - sequence.call.arrived)
        sequence.last_token_at = now

    def end(self, sequence: Sequence, last: Output | RequestError) -> None:
        """Observe the time of a whole call unless it failed or was cancelled."""
        if isinstance(last, Output) and last.finish_reason != "cancelled":
            self.call.observe(time.monotonic() - sequence.call.arrived)
