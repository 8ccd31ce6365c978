"""A request while it is decoded."""

import math
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.logprobs import TokenLogprobs
from hiscore.decoding.interface.worker import NO_PAGES
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.page_hashes import PageHashes


class Status(Enum):
    WAITING = auto()
    """Holds nothing yet."""
    RESTORING = auto()
    """Holds all that it needs; what the host has of it is on its way to staging."""
    PREFILLING = auto()
    """Holds all that it needs; parts of its prompt are still to be launched."""
    ADMITTED = auto()
    """Will join the steps once the copies out of its staging pages have landed."""
    RUNNING = auto()
    """In every step."""
    DRAINING = auto()
    """In no further launch; freed or preempted once its results are read and its offloads have landed."""
    PREEMPTED = auto()
    """Holds its host pages, or nothing, and waits to be resumed."""
    FINISHED = auto()
    """Holds nothing any more."""


class Grammar(Protocol):
    """Tokens that a sequence may go on with: `hiscore.decoding.requests.grammar.GrammarMatcher`."""

    def mask(self) -> Int32: ...
    def advance(self, token: int) -> Int32: ...


@dataclass(frozen=True)
class DecodeCall:
    """A validated call, with an int32 prompt of at least one token.

    Attributes:
        deadline: Time at which it must have ended, in seconds of the monotonic clock.
        start_by: Time at which it must have left the queue, on the same clock.
        arrived: Time of its arrival, on the same clock.
        mask: The grammar's first.
    """

    prompt: Int32
    params: SamplingParams
    deadline: float
    start_by: float = math.inf
    arrived: float = field(default_factory=time.monotonic)
    grammar: Grammar | None = None
    mask: Int32 | None = None


@dataclass(frozen=True)
class Output:
    """New tokens and text of a sequence.

    Attributes:
        finish_reason: "" until the last output, then "stop", "length" or "cancelled".
        usage: Tokens so far: of the prompt, of these from the prefix cache, of the output.
        matched_stop: The stop string that ended it; empty if something else did.
        logprobs: One for each of `token_ids`, if the request asks for them.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    usage: tuple[int, int, int] = (0, 0, 0)
    matched_stop: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass
class Holdings:
    """Pages that a sequence holds, int32 [n]. The pools alone write here.

    Attributes:
        seq_index: Row of the per-sequence tables; -1: none.
        host_pages: The sequence's block table in the host pool.
        staging_pages: Pages into which the prompt is prefilled.
        borrowed_pages: Pages held for the prefill only.
        source_blocks: Host blocks of others that are copied, held until then.
        window_pages: Places in windowed layers, which the sequence's pages take in turn; kept as long as any host
            pages.
        state_slot: Place of its state in recurrent layers, kept as long as any host pages; -1: none.
        snapshots: Slots of states of its prompt that nobody can find yet, by the tokens before each.
        restored_pages: int64 [n]: host pages that a resumed sequence copies to staging; None: all.
    """

    seq_index: int = -1
    host_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    device_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    staging_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    borrowed_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    source_blocks: Int32 = field(default_factory=lambda: NO_PAGES)
    window_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    restored_pages: Int64 | None = None
    state_slot: int = -1
    snapshots: dict[int, int] = field(default_factory=dict)

    def window_pages_of(self, first: int, last: int) -> Int32:
        """Places of pages [first, last) in windowed layers: int32; before the window they hold other pages."""
        if not len(self.window_pages):
            return NO_PAGES
        pages: Int32 = self.window_pages[np.arange(first, last) % len(self.window_pages)]
        return pages


@dataclass
class Turn:
    """Place in the queue, and what the sequence has had of its turn. The queues and their policies write here.

    Attributes:
        queue_position: The lowest of all that wait comes first.
        waiting_since: Step at which the wait began.
        steps_run: Steps since the start or resumption, less twice those lost meanwhile.
        gives_up: Host blocks, the last ones, that are taken at a preemption.
    """

    queue_position: float = 0
    waiting_since: int = 0
    times_overtaken: int = 0
    steps_run: int = 0
    gives_up: int = 0


@dataclass(eq=False)
class Sequence:
    """A call, what it holds, and how far it has come.

    Attributes:
        reply_to: Passed through: the engine's caller knows the sequence by it.
        held: Pages; written by the pools.
        turn: Place in the queue; written by the queues and their policies.
        status: Written by `Queues`.
        prefilled: Prompt tokens launched.
        sampled: Tokens sampled by launches, including those still in flight.
        read: Sampled tokens that have been read.
        replayed: After a loss of pages, so many of `output_ids` are fed once more, and not sent again.
        furthest: Most tokens before the sequence went back: its places in windowed layers may hold these.
        in_flight: Launches that have not been read.
        ended: The last output is out: tokens still in flight are dropped.
        has_failed: The model or the device failed: nothing of the sequence is used again.
        resident: On the device as a whole, attending to everything for now.
        full_attention_tokens: Number of first tokens that attend to everything; by default any.
        restored: Resumed from host pages, without a prefill.
        has_index: The index is complete: the sequence has selected since it was made.
        is_published: The prompt's blocks can be found by others.
        mask: Tokens that the grammar allows next; None while that is not known.
        is_counted: The tokens are counted on the device, for penalties.
        snapshot_ends: Numbers of first prompt tokens whose states are kept for prompts that begin alike.
        has_left_queue: The prefill has begun; written by `Times`.
        last_token_at: Time of the last token read, on the monotonic clock; 0 before the first. Written by `Times`.
    """

    call: DecodeCall
    reply_to: Any
    stop_checker: StopChecker
    held: Holdings = field(default_factory=Holdings)
    turn: Turn = field(default_factory=Turn)

    status: Status = Status.WAITING
    prefilled: int = 0
    sampled: int = 0
    read: int = 0
    output_ids: list[int] = field(default_factory=list)
    replayed: int = 0
    furthest: int = 0
    in_flight: int = 0
    ended: bool = False
    has_failed: bool = False

    resident: bool = False
    full_attention_tokens: float = math.inf
    restored: bool = False
    has_index: bool = False
    is_published: bool = False
    hashes: PageHashes | None = None
    cached_tokens: int = 0
    snapshot_ends: tuple[int, ...] = ()

    mask: Int32 | None = None
    is_counted: bool = False
    has_left_queue: bool = False
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        self.mask = self.call.mask

    @property
    def waits_for_mask(self) -> bool:
        """Return whether the sequence must sit out a step (`hiscore.decoding.engine.masks`)."""
        return self.call.grammar is not None and self.mask is None and self.sampled >= self.replayed

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens that were sent."""
        return len(self.output_ids)

    @property
    def prompt_left(self) -> int:
        return len(self.call.prompt) - self.prefilled

    @property
    def length(self) -> int:
        """Tokens whose keys and values have been launched; the next step writes this position."""
        return self.prefilled + max(0, self.sampled - 1)

    @property
    def usage(self) -> tuple[int, int, int]:
        return len(self.call.prompt), self.cached_tokens, self.num_output_tokens

    @property
    def all_sampled(self) -> bool:
        return self.sampled == self.call.params.max_tokens

    @property
    def tokens_left(self) -> int:
        return self.call.params.max_tokens - self.sampled

    @property
    def selects(self) -> bool:
        return self.call.params.sparse and not self.resident

    def steps_beyond(self, tokens: int) -> int:
        """Count the steps to repeat if only so many first tokens are left."""
        return max(0, self.length - max(tokens, len(self.call.prompt)))

    def use_mask(self) -> None:
        """Record the launch of the newest token, unless it is replayed: the mask is used, and it is counted."""
        if not self.replays(self.length):
            self.mask = None
            self.is_counted = self.call.params.has_penalty

    def go_back(self, tokens: int) -> None:
        """Keep only the first tokens, all of the prompt and perhaps more, or 0; the others are computed again.

        The prompt is repeated by prefill and the rest step by step, so keys and values are the same, to the bit.
        """
        if tokens >= self.length:
            return
        self.turn.steps_run -= 2 * self.steps_beyond(tokens)
        if self.full_attention_tokens < math.inf and not self.resident:
            # The steps that it repeats select: its prompt alone attends to everything again.
            self.full_attention_tokens = min(self.full_attention_tokens, max(tokens, len(self.call.prompt)))
        self.replayed = len(self.output_ids)
        self.furthest = max(self.furthest, self.length) if tokens else 0
        if not tokens:
            self.prefilled = self.sampled = self.read = 0
            self.is_published = False
        else:
            self.sampled = self.read = tokens - self.prefilled + 1

    def replays(self, position: int) -> bool:
        """Return whether the token at a position is sampled for nothing, because it is known."""
        return position - len(self.call.prompt) < self.replayed

    @property
    def forced_token(self) -> int | None:
        """Token that the next step must be fed; None: what was sampled last, which is on the device."""
        return self.output_ids[self.sampled - 1] if 0 < self.sampled <= self.replayed else None
