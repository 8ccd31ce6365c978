"""What a sequence has in layers that keep a window only: a ring of pages, which its blocks take in turn."""

from dataclasses import dataclass, field

import numpy as np

from hiscore.arrays import Int32


def _nothing() -> Int32:
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class SetAside:
    """A block that its sequence has no place for any more, and that may be found once the prompt is published.

    Attributes:
        number: Which of its sequence's blocks it is.
        block: Its number in the pool.
        turn: How often the pool had given that block out.
    """

    number: int
    block: int
    turn: int


@dataclass
class WindowRing:
    """A sequence's block b is the (b % ring)-th of these.

    Attributes:
        pages: int32 [n]: those of all its places. Fewer than a ring has, as long as the sequence is shorter.
        numbers: int32 [places]: the block of the sequence that each place has; -1: none yet.
        set_aside: Blocks of the prompt that had a place before.
        furthest: Tokens that the sequence had before it went back, at most: what these places may hold.
    """

    pages: Int32 = field(default_factory=_nothing)
    numbers: Int32 = field(default_factory=_nothing)
    set_aside: list[SetAside] = field(default_factory=list)
    furthest: int = 0

    def pages_of(self, first: int, last: int) -> Int32:
        """The pages of a sequence's pages [first, last): int32. Those before its window have others' places."""
        if not len(self.pages):
            return _nothing()
        pages: Int32 = self.pages[np.arange(first, last) % len(self.pages)]
        return pages
