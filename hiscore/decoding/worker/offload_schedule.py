"""When keys and values travel to the host: every launch, wait and record of `decode`, in one place.

A step's forward writes one new token for each of its rows; a copy then takes these tokens to the host, all layers
at once, in a lane of its own. Copies are numbered (tickets) and land in that order. There is one rule:

    Before a step writes position p of a sequence, the forward lane waits for the copy of position p - W.

W is the width of the ring: the tokens whose copies may be under way while their sequence goes on. Pages of P
tokens stand in a ring of `ring_pages(W, P)` pages, so that the rule gives all that a step needs:

- A slot is written anew only when its copy has ended. Writing position p may overwrite position
  p - (ring_pages - 1) * P - 1 or an older one; none is newer than p - W.
- A swap-in reads whole rows. A step at p swaps in pages below p // P - ring_pages + 1 only. The newest token of
  these is again p - (ring_pages - 1) * P - 1 or older. A prompt is copied part by part, each behind the forward
  that wrote it; so its first step, at position n, waits for the part with position n - W and those before it.
- After a step at p, the host holds every token but the newest W.

`deferred` is W = 1: a forward waits for the copy of the step before. `blocking` has no lane of its own for a
step's copy: the host waits for the forward, then launches the copy before the next forward, in the forward's lane.

And at the edges of a sequence's life:

- A copy waits for the forward that wrote what it reads. All earlier work of the forward lane has ended then, too,
  so host pages that change hands are never written while an old swap-in reads them.
- Staging pages are written only when the copies of the prompt that stood in them have ended.
- A sequence's index, pages and staging are given up only when `drained` says that all its copies have landed.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.decoding.worker.device_queues import Event, Lane, Streams, Work
from hiscore.settings import BackupProtocol


def ring_pages(width: int, page: int) -> int:
    """Pages of `page` tokens in which the newest `width` tokens of a sequence stand, whatever its position."""
    return -(-(width - 1) // page) + 1


@dataclass(frozen=True)
class Copy:
    """A copy to the host that has been launched: the newest position that it brings of each sequence."""

    event: Event
    seq_indices: Int32
    positions: Int32
    tokens: int


@dataclass(frozen=True)
class Pending:
    """`blocking` only: a step whose copy waits for its forward, and so does the host."""

    forward: Event
    seq_indices: Int32
    positions: Int32
    work: Work


class BackupSchedule:
    """The order of work in the lanes of one device, for at most `max_sequences`. For one thread.

    protocol: see above; width: W, for `ring` only; staging_pages: how many there are.

    Each method launches what it is given and returns. A `backup` must carry its list of rows with it: a step's
    arrays may have been rewritten for the next one before the copy runs. (Under `blocking` one list is enough.)
    """

    def __init__(
        self, streams: Streams, protocol: BackupProtocol, width: int, max_sequences: int, staging_pages: int
    ) -> None:
        if width < 1:
            raise ValueError(f"the ring must hold 1 token at least, not {width}")
        self.width = width if protocol == "ring" else 1
        self.backed_up = 0
        """Tokens that have landed on the host, prompts' included."""
        self._blocking = protocol == "blocking"
        self._streams = streams
        self._tickets = np.zeros(
            (max_sequences, self.width), np.int64
        )  # of position p at [seq_index, p % width]
        self._newest = np.zeros(max_sequences, np.int64)
        self._staging = np.zeros(staging_pages, np.int64)
        self._written = np.full(max_sequences, -1, np.int64)
        self._landed = np.full(max_sequences, -1, np.int64)
        self._copies: deque[Copy] = deque()  # those after `_done`
        self._done = 0
        self._awaited = 0
        self._pending: Pending | None = None

    def stage(self, pages: Int32, work: Work) -> None:
        """A forward that writes staging pages. pages: those of them in which nothing of the same sequence
        stands.
        """
        self._poll()
        self._await(int(self._staging[pages].max(initial=0)))
        self._streams.launch(Lane.FORWARD, work)

    def back_up_prompt(self, seq_index: int, start: int, end: int, pages: Int32, work: Work) -> None:
        """The copy of a prompt's tokens [start, end) after all before them, out of these staging pages."""
        last = np.array([seq_index], np.int32), np.array([end - 1], np.int32)
        ticket = self._copy(Lane.BACKUP, work, *last, tokens=end - start)
        self._staging[pages] = self._newest[seq_index] = ticket
        self._tickets[seq_index, np.arange(max(start, end - self.width), end) % self.width] = ticket
        self._written[seq_index] = end - 1

    def restore(self, seq_index: int, length: int, pages: Int32, work: Work) -> None:
        """`stage` for a sequence that comes back: the host has all of its `length` tokens."""
        self.stage(pages, work)
        self._written[seq_index] = self._landed[seq_index] = length - 1

    def step(self, seq_indices: Int32, positions: Int32, forward: Work, backup: Work) -> None:
        """One decode step, for rows that each continue their sequence by one token.

        seq_indices, positions: int32 [rows], no sequence twice. ValueError if a position is not its
        sequence's next.
        """
        if not np.array_equal(positions, self._written[seq_indices] + 1):
            raise ValueError("a step must write the next position of each of its sequences")
        self._poll()
        if self._pending:
            self._streams.block(self._pending.forward)
            self._copy_pending()
        cells = seq_indices, positions % self.width
        self._await(int(self._tickets[cells].max(initial=0)))
        self._streams.launch(Lane.FORWARD, forward)
        self._written[seq_indices] = positions
        if self._blocking:
            self._tickets[cells] = 0  # the lane's own order is enough
            self._pending = Pending(self._record(Lane.FORWARD), seq_indices.copy(), positions.copy(), backup)
            return
        ticket = self._copy(
            Lane.BACKUP, backup, seq_indices.copy(), positions.copy(), tokens=len(seq_indices)
        )
        self._tickets[cells] = self._newest[seq_indices] = ticket

    def forward(self, work: Work) -> None:
        """Work at the end of the forward lane that writes nothing that copies under way read or write."""
        self._streams.launch(Lane.FORWARD, work)

    def drained(self, seq_index: int) -> bool:
        """Whether all copies of a sequence's tokens have landed. Never waits.

        Once a prompt's last part has been launched, it says that all have landed: the staging is free, and the
        first step will not wait.
        """
        self._poll()
        if self._pending and self._streams.happened(self._pending.forward):
            self._copy_pending()
            self._poll()
        pending = self._pending is not None and seq_index in self._pending.seq_indices
        return not pending and bool(self._newest[seq_index] <= self._done)

    def release(self, seq_index: int) -> None:
        """The sequence has left, for good or for later. RuntimeError unless it is drained."""
        if not self.drained(seq_index):
            raise RuntimeError(f"sequence {seq_index} has copies under way")
        self._written[seq_index] = self._landed[seq_index] = -1

    def lag(self) -> Int64:
        """Tokens written (or about to be) that are not known to have landed, of each sequence: int64
        [max_sequences]."""
        return self._written - self._landed

    def _copy(self, lane: Lane, work: Work, seq_indices: Int32, positions: Int32, tokens: int) -> int:
        if lane is Lane.BACKUP:
            forward = self._record(Lane.FORWARD)
            self._streams.wait(Lane.BACKUP, forward)
            self._streams.recycle(forward)
        self._streams.launch(lane, work)
        self._copies.append(Copy(self._record(lane), seq_indices, positions, tokens))
        return self._done + len(self._copies)

    def _copy_pending(self) -> None:
        """Launch the copy of a step whose forward has ended."""
        pending, self._pending = self._pending, None
        if pending:
            self._streams.recycle(pending.forward)
            rows = pending.seq_indices, pending.positions
            ticket = self._copy(Lane.FORWARD, pending.work, *rows, tokens=len(pending.seq_indices))
            self._newest[pending.seq_indices] = ticket

    def _record(self, lane: Lane) -> Event:
        event = self._streams.event()
        self._streams.record(event, lane)
        return event

    def _await(self, ticket: int) -> None:
        """The forward lane goes on after this copy (and those of the backup lane before it) has landed."""
        if ticket > max(self._done, self._awaited):
            self._streams.wait(Lane.FORWARD, self._copies[ticket - self._done - 1].event)
            self._awaited = ticket

    def _poll(self) -> None:
        while self._copies and self._streams.happened(self._copies[0].event):
            copy = self._copies.popleft()
            self._streams.recycle(copy.event)
            self._landed[copy.seq_indices] = copy.positions
            self._done += 1
            self.backed_up += copy.tokens
