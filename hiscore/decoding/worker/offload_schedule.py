"""The order of forwards and of copies to the host: what waits for which copy. Knows no device.

A step's forward writes one new token per row; a copy then takes these tokens to the host, all layers at once,
on the OFFLOAD queue. Copies are numbered (tickets) and complete in that order. There is one rule:

    Before a step writes position p of a sequence, the COMPUTE queue waits for the copy of position p - W.

W is the width of the ring: the number of newest tokens whose copies may still be running while their sequence
goes on. They live in a ring of `ring_pages(W, P)` pages of P tokens, so the rule gives a step everything it
needs:

- A slot is overwritten only after its copy. Writing position p may overwrite position p - (ring_pages - 1) * P
  - 1 or an older one; none is newer than p - W.
- A swap-in reads only what the host has. A step at p swaps in pages below p // P - ring_pages + 1 only, whose
  newest token is again p - (ring_pages - 1) * P - 1. A prompt is copied in parts, each behind the forward that
  wrote it; so its first step, at position n, waits for the part that holds position n - W and for all parts
  before it.
- After a step at p, the host holds every token but the newest W.

And at the edges of a sequence's life:

- A copy waits for the forward that wrote what it reads, and so for all work launched on the COMPUTE queue
  before. So reused host pages are never written while an old swap-in reads them.
- Staging pages are overwritten only after the copies of the prompt that they held.
- A sequence frees its index, pages and staging only when it is drained: when all of its copies have completed.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiscore.arrays import Int32, Int64

Event = Any
"""An event of a device's queues, never None: it completes with the work behind which it was recorded."""


@dataclass(frozen=True)
class Copy:
    """A launched copy to the host: the event behind it, and each sequence's newest position copied, int32 [n]."""

    done: Event
    seq_indices: Int32
    positions: Int32
    tokens: int


class OffloadSchedule:
    """Decides what forwards wait for, and keeps track of copies. For one thread.

    The caller asks what to wait for, launches the work, and then reports the launch. It also reports each copy
    that has completed, in order: `oldest_copy` is the event to check.
    """

    def __init__(self, width: int, max_sequences: int, staging_pages: int) -> None:
        """Make an empty schedule; with a width W of 1, the least, a step waits for the copy of the one before."""
        if width < 1:
            raise ValueError(f"the ring must hold 1 token at least, not {width}")
        self.width = width
        self.offloaded_tokens = 0
        """Tokens whose copies have completed, those of prompts included."""
        # Ticket of the copy of position p at [seq_index, p % width].
        self._tickets = np.zeros((max_sequences, self.width), np.int64)
        self._newest_ticket = np.zeros(max_sequences, np.int64)
        self._staging_tickets = np.zeros(staging_pages, np.int64)
        # The newest position of each sequence that was launched, and the newest known to be on the host.
        self._written = np.full(max_sequences, -1, np.int64)
        self._landed = np.full(max_sequences, -1, np.int64)
        self._copies: deque[Copy] = deque()  # in flight; the first one's ticket is _completed + 1
        self._completed = 0
        self._awaited = 0

    @property
    def oldest_copy(self) -> Event | None:
        """The event that completes with the oldest copy in flight; None without any."""
        return self._copies[0].done if self._copies else None

    def copy_completed(self) -> None:
        """Record that the oldest copy has completed; its event is free."""
        copy = self._copies.popleft()
        self._landed[copy.seq_indices] = copy.positions
        self._completed += 1
        self.offloaded_tokens += copy.tokens

    def staging_waits_for(self, pages: Int32) -> Event | None:
        """The event to wait for before writing to staging pages, int32, that hold nothing of the same sequence."""
        return self._wait_for(int(self._staging_tickets[pages].max(initial=0)))

    def all_copies(self) -> Event | None:
        """The event that completes with all copies in flight; None without any."""
        return self._wait_for(self._completed + len(self._copies))

    def prompt_copied(self, done: Event, seq_index: int, start: int, end: int, staging_pages: Int32) -> None:
        """Record a launched copy of a prompt's tokens [start, end), which follow those copied before."""
        newest = np.array([end - 1], np.int32)
        ticket = self._add(Copy(done, np.array([seq_index], np.int32), newest, end - start))
        self._staging_tickets[staging_pages] = self._newest_ticket[seq_index] = ticket
        self._tickets[seq_index, np.arange(max(start, end - self.width), end) % self.width] = ticket
        self._written[seq_index] = end - 1

    def restored(self, seq_index: int, length: int) -> None:
        """Record a launched restore: the host has all `length` tokens of the sequence."""
        self._written[seq_index] = self._landed[seq_index] = length - 1

    def step_waits_for(self, seq_indices: Int32, positions: Int32) -> Event | None:
        """Find the event to wait for before a step; raise ValueError if a position is not its sequence's next."""
        if not np.array_equal(positions, self._written[seq_indices] + 1):
            raise ValueError("a step must write the next position of each of its sequences")
        ticket = int(self._tickets[seq_indices, positions % self.width].max(initial=0))
        return self._wait_for(ticket)

    def step_launched(self, seq_indices: Int32, positions: Int32) -> None:
        """Record a step's launched forward."""
        self._written[seq_indices] = positions

    def step_copied(self, done: Event, seq_indices: Int32, positions: Int32) -> None:
        """Record a step's launched copy; `done` is recorded behind it."""
        ticket = self._add(Copy(done, seq_indices.copy(), positions.copy(), len(seq_indices)))
        self._newest_ticket[seq_indices] = self._tickets[seq_indices, positions % self.width] = ticket

    def drained(self, seq_index: int) -> bool:
        """Return whether all copies of a sequence's tokens have completed, as far as was reported.

        After a prompt's last part, this says that its staging is free and that its first step will not wait.
        """
        return bool(self._newest_ticket[seq_index] <= self._completed)

    def release(self, seq_index: int) -> None:
        """Forget a sequence that has ended or is preempted; raise RuntimeError if it is not drained."""
        if not self.drained(seq_index):
            raise RuntimeError(f"sequence {seq_index} has copies in flight")
        self._written[seq_index] = self._landed[seq_index] = -1

    def lag(self) -> Int64:
        """Tokens that were launched and are not known to be on the host: int64 [max_sequences]."""
        return self._written - self._landed

    def _add(self, copy: Copy) -> int:
        self._copies.append(copy)
        return self._completed + len(self._copies)

    def _wait_for(self, ticket: int) -> Event | None:
        """The event to wait for, so that this copy and all before it have completed; None if no wait is needed."""
        if ticket <= max(self._completed, self._awaited):
            return None
        self._awaited = ticket
        return self._copies[ticket - self._completed - 1].done
