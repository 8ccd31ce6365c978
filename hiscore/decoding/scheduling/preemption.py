"""Preemption of sequences, for memory and for a place.

For memory, the newest sequence that holds some is preempted. So the oldest always goes on, with every page if it
needs them: it ends, then the next is the oldest, and nothing can deadlock. What a preempted sequence has done is
lost least often if it has done little. If the host pool is full it gives up as many of its last blocks as are
needed, and later repeats their tokens.

For a place, a sequence is preempted only if the first in the queue has waited several times as long as it would
itself run. So a long sequence that waits for others as long preempts none, and a small one does not wait for a
large one to end, nor to repeat what it lost: that is part of the large one's turn. A large one still ends, because
at least half of the steps of a turn stay (or it has twice as many tokens as when it last lost some, which happens
a few times only). So a small one waits, once it is overdue, for at most twice as many steps as it takes tokens;
what it takes of a prompt costs a prefill, but no steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hiscore.decoding.sequence import Sequence


@dataclass(frozen=True)
class PreemptionPolicy:
    """Conditions under which a sequence that waits may preempt one that runs.

    Attributes:
        factor: Steps that it waits for each token that it may still generate.
        least: Steps that any sequence waits.
        most: Steps after which any may preempt; 0: none ever does.
    """

    factor: int = 4
    least: int = 64
    most: int = 1024

    def is_overdue(self, waiting: Sequence, step: int) -> bool:
        """Return whether a sequence has waited long enough at this step to preempt another."""
        return self.most > 0 and step - waiting.turn.waiting_since >= self.wait_steps(waiting)

    def is_short(self, waiting: Sequence) -> bool:
        """Return whether a sequence will soon have ended once it has started."""
        return self.wait_steps(waiting) < self.most

    def may_preempt(self, running: Sequence, waiting: Sequence) -> bool:
        """Return whether a running sequence has had as long a turn and would not end soon; see `can_spare`."""
        steps = self.wait_steps(waiting)
        return running.turn.steps_run >= steps and running.tokens_left > steps

    def wait_steps(self, waiting: Sequence) -> int:
        """Count the steps that a sequence waits before it is overdue."""
        return min(max(self.least, self.factor * waiting.tokens_left), self.most)


def can_spare(holder: Sequence, lost: int) -> bool:
    """Return whether a sequence can repeat so many steps and still get on."""
    return 2 * lost <= holder.turn.steps_run or holder.num_output_tokens >= 2 * holder.replayed


def newest(sequences: Iterable[Sequence], on_host: bool) -> Sequence | None:
    """Return the newest sequence that holds memory on the host, or on the device."""
    holders = [each for each in sequences if len(each.held.host_pages if on_host else each.held.device_pages)]
    return max(holders, key=lambda each: each.turn.queue_position, default=None)
