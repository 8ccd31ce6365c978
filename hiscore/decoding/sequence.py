"""A request on its way through decoding."""

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hiscore.arrays import Int32
from hiscore.decoding.sampling_params import DecodeOptions
from hiscore.decoding.stop_strings import StreamEnd
from hiscore.decoding.worker.interface import NO_PAGES, Admission


class Stage(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    """Holds nothing yet."""
    PREFILLING = auto()
    """Holds all that it needs; parts of its prompt are still to be launched."""
    STAGING = auto()
    """Admitted; the copies out of its staging pages are under way."""
    RUNNING = auto()
    """In every step."""
    LEAVING = auto()
    """In no more launches; gives back what it holds when the last has been read and its backups have landed."""
    PREEMPTED = auto()
    """Holds its pages on the host and waits to come back."""
    GONE = auto()
    """Holds nothing any more."""


@dataclass(frozen=True)
class DecodeCall:
    """A checked call. prompt: int32 [n], at least one token.

    deadline: when it must have ended; start_by: when it must have left the queue. On the monotonic
    clock, in seconds.
    """

    prompt: Int32
    options: DecodeOptions
    deadline: float
    start_by: float = math.inf


@dataclass(frozen=True)
class Output:
    """What is new of a sequence. finish_reason: '' until the last, then stop, length or cancelled."""

    token_ids: list[int]
    text: str
    finish_reason: str


@dataclass(eq=False)
class Sequence:
    """A call, what it holds, and how far it has come.

    `reply_to` is the caller's business; `end` says when the sequence ends, and what text it has until then.
    """

    call: DecodeCall
    reply_to: Any
    end: StreamEnd

    stage: Stage = Stage.WAITING
    seq_index: int = -1
    host: Int32 = field(default_factory=lambda: NO_PAGES)
    device: Int32 = field(default_factory=lambda: NO_PAGES)
    staging: Int32 = field(default_factory=lambda: NO_PAGES)

    prefilled: int = 0
    """Tokens of the prompt that have been launched."""
    sampled: int = 0
    """Tokens that launches sample, those on their way among them."""
    received: int = 0
    """Tokens that have been read."""
    newest: int = -1
    """The last of them."""
    in_flight: int = 0
    """Launches that have not been read."""
    ended: bool = False
    """Has had its last answer: what is still on its way is dropped."""

    turn: int = 0
    """Its place among all that wait: the lowest is the first."""
    waits_since: int = 0
    """The step at which it began to wait."""
    overtaken: int = 0
    """How many that came later have been started meanwhile."""
    ran: int = 0
    """Steps since it was admitted."""

    @property
    def unfilled(self) -> int:
        """Tokens of the prompt that are still to be launched."""
        return len(self.call.prompt) - self.prefilled

    @property
    def length(self) -> int:
        """Tokens whose keys and values have been launched; the next step's token stands at this position."""
        return self.prefilled + max(0, self.sampled - 1)

    @property
    def all_sampled(self) -> bool:
        return self.sampled == self.call.options.max_tokens

    def admission(self) -> Admission:
        """After the prompt's last chunk was launched, or when a preempted sequence has been restored."""
        first_token = self.newest if self.received else None
        full = not self.call.options.sparse
        return Admission(
            self.seq_index, self.length, self.host, self.device, self.staging, full, first_token
        )  # fmt: skip
