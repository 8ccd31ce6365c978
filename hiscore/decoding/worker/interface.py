"""What the scheduler asks of the device side, and what it gets back.

A worker is called by one thread. Every call but `Launched.result` only launches work; what it launches runs on the
device in the order of the calls. So a page may be given to another sequence as soon as `release` has named it,
and a staging page as soon as its sequence is `drained`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hiscore.arrays import Float32, Float64, Int32

STAGING_PAGE = 16
"""Tokens of a page of the staging pool: the scorer's."""

NOT_FINITE = -1
"""Stands for a token whose logits were not finite."""

NO_PAGES: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True)
class Geometry:
    """Sizes that the scheduler plans with.

    page: tokens of a page on the host and in the device's buffers. lru_pages, ring_pages: a sparse sequence's
    pages on the device. host_pages, device_pages, staging_pages: sizes of the pools. chunk: tokens of a
    prefill forward. dense: nothing is selected, so a sequence owns no pages of a device buffer.
    """

    page: int
    lru_pages: int
    ring_pages: int
    host_pages: int
    device_pages: int
    staging_pages: int
    max_sequences: int
    chunk: int
    context_length: int
    dense: bool = False


@dataclass(frozen=True)
class Sampling:
    """How each of R rows is sampled.

    temperature: float32 [R], 0 is greedy; top_k: int32 [R], 0 is off; top_p: float32 [R]; uniforms: float64 [R]
    in [0, 1), one draw for each row.
    """

    temperature: Float32
    top_k: Int32
    top_p: Float32
    uniforms: Float64


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt to prefill.

    seq_index: the sequence's. tokens: int32 [n]. start: position of the first. staging_pages, host_pages: int32,
    those of the whole prompt in the order of positions; without pages of the host it is not backed up. last:
    the prompt ends here, its last row is sampled. full: it attends to everything, which matters where a
    checkpoint selects in its prefill too.
    """

    seq_index: int
    tokens: Int32
    start: int
    staging_pages: Int32
    host_pages: Int32
    last: bool
    full: bool = False

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Admission:
    """A sequence whose keys and values stand in the staging pool may decode.

    length: tokens in staging. host_pages, staging_pages: int32, in the order of positions; device_pages: int32, in
    the order of the buffer's slots. full: it attends to everything. first_token: what its first step feeds; None
    after a prefill: the prefill's sample, still on the device.
    """

    seq_index: int
    length: int
    host_pages: Int32
    device_pages: Int32
    staging_pages: Int32
    full: bool
    first_token: int | None


@dataclass(frozen=True)
class StepRows:
    """One decode step: seq_indices, positions: int32 [R]; a position is that of the token that the step feeds."""

    seq_indices: Int32
    positions: Int32
    sampling: Sampling


@dataclass(frozen=True)
class StepResult:
    """What a launch gave.

    tokens: int32, one for each row of a step, or for each chunk of a prefill that was its prompt's last;
    `NOT_FINITE` where the logits were not finite. The rest is counted since the result before: hits and misses of
    pages (per layer, row and head), seconds on the device, tokens backed up; captured: sum of the selected
    attention mass over as many captured_rows. backup_lag: tokens whose copies to the host are under way.
    """

    tokens: Int32
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0
    backed_up: int = 0
    backup_lag: int = 0
    captured: float = 0.0
    captured_rows: int = 0


class Launched(Protocol):
    """Work on its way."""

    def result(self) -> StepResult:
        """Wait for the work, once. May raise, for all of its rows."""
        ...


class Worker(Protocol):
    """The device side.

    What `prefill`, `restore`, `admit`, `step` or a result raises has failed the sequences that it concerned,
    and no other. What `drained` or `release` raises ends the engine.
    """

    geometry: Geometry

    def prefill(self, chunks: Sequence[Chunk], sampling: Sampling) -> Launched:
        """Run parts of prompts in one forward; sampling has one row for each chunk that is its prompt's last.

        Each part is backed up as far as it fills pages of the host, the last to its end. The sampled tokens also
        stay on the device, as what their sequences feed next.
        """
        ...

    def restore(self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32) -> None:
        """Copy a preempted sequence's tokens [0, length) from the host to staging; `admit` follows."""
        ...

    def admit(self, admission: Admission) -> None:
        """Staging to the resident seeds, after a prefill to index and dense layers too; fill the tables."""
        ...

    def step(self, rows: StepRows) -> Launched:
        """One decode step. Each row feeds its sequence's newest token, and its sample becomes the newest."""
        ...

    def drained(self, seq_index: int) -> bool:
        """Whether no copy of this sequence is under way: what was launched of its backups has landed.

        Does not wait. True for a sequence whose prompt was never begun.
        """
        ...

    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        """These pages belong to nobody from now on; its index is free.

        Called when all of its launches have been read and it is `drained`; perhaps it was never admitted.
        seq_index: -1 for a sequence that was preempted before and holds none. host_pages is empty for a sequence
        that is being preempted: it keeps them.
        """
        ...
