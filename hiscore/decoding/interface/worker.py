"""The interface between the decode engine and the device: what the scheduler asks for and what it gets back.

One thread calls a worker. Every call except `PendingForward.result` only launches work, and the device runs that
work in the order of the calls. So a page may be given to another sequence as soon as `release` has named it, and a
staging page as soon as its sequence is `drained`. A `seq_index` is a sequence's row in the per-sequence tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.logprobs import TokenLogprobs
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch

NOT_FINITE = -1
"""Token id that reports logits which were not finite."""

NO_PAGES: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True)
class PrefillChunk:
    """A part of a prompt to prefill.

    Attributes:
        tokens: int32 [n].
        start: Position of the first token.
        staging_pages: int32, the whole prompt's, in the order of positions.
        host_pages: int32, the whole prompt's, in the order of positions; empty: do not offload.
        is_last: The prompt ends here; sample its last row.
        full_attention: Attend to everything, even if the checkpoint's indexer would select tokens in prefill too.
        window_pages: int32: the context's, in windowed layers; before the window they may hold anything.
        into_windows: int32: the tokens' own, in windowed layers. Of two tokens in one place the later one stays.
        state_slot: Where the state before the tokens is, and the one behind them goes; -1: no layer is recurrent.
        snapshots: Slots that get a copy of the state behind so many tokens of the prompt.
    """

    seq_index: int
    tokens: Int32
    start: int
    staging_pages: Int32
    host_pages: Int32
    is_last: bool
    full_attention: bool = False
    window_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    into_windows: Int32 = field(default_factory=lambda: NO_PAGES)
    state_slot: int = -1
    snapshots: Mapping[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Admission:
    """A sequence to move from staging into its device buffer, so that it can decode.

    Attributes:
        length: Tokens in staging.
        host_pages: int32, in the order of positions.
        device_pages: int32, in the order of the buffer's pages.
        staging_pages: int32, in the order of positions.
        full_attention: Attend to everything in sparse layers too.
        is_buffer_alone: Staging has what its buffer starts with, in that order, and its index is complete.
        first_token: Input of its first step; None after a prefill, whose sample is still on the device.
        window_pages: int32: its pages in windowed layers; before the window they may hold anything.
        state_slot: Where its state is; -1: no layer is recurrent.
    """

    seq_index: int
    length: int
    host_pages: Int32
    device_pages: Int32
    staging_pages: Int32
    full_attention: bool
    first_token: int | None
    window_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    is_buffer_alone: bool = False
    state_slot: int = -1


@dataclass(frozen=True)
class Growth:
    """Pages that a running sequence is given before a step.

    With as many device pages as host pages it is resident as a whole. If it gets fewer for the first time, it is
    spilled: no token moves, but its device pages are numbered anew, as the LRU area and the ring.

    Attributes:
        start: Host pages that it had before, all full.
        host_pages: int32 [n], the new ones, in the order of positions.
        device_pages: int32, the new ones; if it is spilled, all that it has, in their new order.
        spilled: Number of its first pages that are then in the LRU area, in order; None: it is not spilled.
        old_host_pages: int32 [spilled]: the host pages of these.
        window_pages: int32: its pages in windowed layers, from `start` on.
    """

    seq_index: int
    start: int
    host_pages: Int32
    device_pages: Int32
    spilled: int | None = None
    old_host_pages: Int32 = field(default_factory=lambda: NO_PAGES)
    window_pages: Int32 = field(default_factory=lambda: NO_PAGES)


@dataclass(frozen=True)
class DecodeBatch:
    """One decode step over R sequences.

    Attributes:
        seq_indices: int32 [R], no index twice.
        positions: int32 [R], of the tokens that the step is fed.
        forced: int32 [R]: tokens to feed instead of the newest samples; -1: the sample. None: -1 for all.
    """

    seq_indices: Int32
    positions: Int32
    sampling: SamplingBatch
    forced: Int32 | None = None


@dataclass(frozen=True)
class ForwardResult:
    """Tokens of a step or a prefill, and what was counted since the previous result.

    Attributes:
        tokens: int32, one per row of a step or per last chunk of a prefill; `NOT_FINITE` for unusable logits.
        hits: Selected pages that were on the device, per layer, row and KV head.
        misses: Selected pages that were swapped in, counted alike.
        seconds: Time on the device.
        offloaded_tokens: Tokens whose copies to the host have completed.
        offload_lag: Tokens whose copies to the host have not completed.
        captured_mass: Estimated share of attention that the selected pages hold, summed over `captured_rows`.
        captured_rows: Rows and KV heads in that sum.
        logprobs: By row, of those that report them.
    """

    tokens: Int32
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0
    offloaded_tokens: int = 0
    offload_lag: int = 0
    captured_mass: float = 0.0
    captured_rows: int = 0
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class PendingForward(Protocol):
    """A step or a prefill that has been launched."""

    @property
    def failures(self) -> Mapping[int, Exception]:
        """Errors known at the launch, by sequence index: each ends its own sequence, and no other."""
        ...

    def result(self) -> ForwardResult:
        """Wait for the result; call once. An error concerns all of its rows."""
        ...


class Worker(Protocol):
    """The device side of decoding.

    An error of `drained` or `release` stops the engine; one of another call or a result fails its own sequences.
    """

    cache_config: CacheConfig

    def prefill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> PendingForward:
        """Run parts of prompts, at most one per sequence, in one forward and offload them.

        Each part is offloaded as far as it fills pages of the host, the last one to its end. The sampled tokens,
        one for each chunk that is its prompt's last, also stay on the device as the inputs of the next steps.
        """
        ...

    def restore(
        self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32, pages: Int64 | None = None
    ) -> None:
        """Copy a preempted sequence from the host to staging; `admit` follows.

        Args:
            host_pages: int32, in the order of positions.
            staging_pages: int32, in the order of what is copied.
            pages: int64: the sequence's pages to copy, the newest among them; None: all.
        """
        ...

    def fetch(self, prefix: Prefix) -> None:
        """Copy what staging lacks of the beginning of a prompt, and its state; its prefill goes on from there."""
        ...

    def admit(self, admission: Admission) -> None:
        """Fill a sequence's tables and its device buffer from staging; after a prefill its index too."""
        ...

    def grow(self, growths: list[Growth]) -> None:
        """Add pages to the tables of running sequences; what it raises fails the step that follows."""
        ...

    def step(self, batch: DecodeBatch) -> PendingForward:
        """Run one decode step. Each row is fed its sequence's newest token, and its sample becomes the newest."""
        ...

    def drained(self, seq_index: int) -> bool:
        """Return whether all offloads launched for this sequence, if any, have completed. Does not wait."""
        ...

    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        """Free a sequence's pages and its row in the tables; it may never have been admitted.

        Call it when all of its launches have been read and it is `drained`.

        Args:
            seq_index: -1 for a sequence that was preempted and has none.
            host_pages: Empty for a sequence that is being preempted and keeps them.
            device_pages: Device pages that hold nothing for any sequence any more.
        """
        ...
