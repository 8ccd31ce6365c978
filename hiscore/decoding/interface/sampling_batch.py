"""Sampling parameters of the rows of a launch, as arrays on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hiscore.arrays import Float32, Float64, Int32, Int64

ROWS_AT_ONCE = 8
"""Rows that penalties or masks change at once, which takes some copies of them."""


@dataclass(frozen=True)
class LogitBias:
    """Biases, float32 [n], at rows and ids of a batch, int64 [n] each, no pair twice; -inf: never sample it."""

    rows: Int64
    ids: Int64
    values: Float32

    def only(self, rows: Sequence[int]) -> "LogitBias":
        kept = np.isin(self.rows, rows)
        return LogitBias(self.rows[kept], self.ids[kept], self.values[kept])


@dataclass(frozen=True)
class Masks:
    """Tokens that the P rows with a grammar may have.

    Attributes:
        rows: int64 [P], of the batch.
        bits: int32 [words] each: a bit for each id, the lowest first; an id beyond them is not allowed.
    """

    rows: Int64
    bits: tuple[Int32, ...]

    def only(self, rows: Sequence[int]) -> "Masks":
        kept = np.flatnonzero(np.isin(self.rows, rows))
        return Masks(self.rows[kept], tuple(self.bits[place] for place in kept))


@dataclass(frozen=True)
class History:
    """Tokens, int32, of a sequence at a row of the batch that the device has not counted: prompt and output."""

    row: int
    prompt: Int32
    output: Int32


@dataclass(frozen=True)
class Penalties:
    """Penalties of the P rows that have any.

    Attributes:
        rows: int64 [P], of the batch.
        repetition: float32 [P]; 1 is off.
        presence: float32 [P]; 0 is off.
        frequency: float32 [P]; 0 is off.
        histories: Tokens of the sequences that are new on the device.
    """

    rows: Int64
    repetition: Float32
    presence: Float32
    frequency: Float32
    histories: tuple[History, ...] = ()

    def only(self, rows: Sequence[int]) -> "Penalties":
        kept = np.isin(self.rows, rows)
        return Penalties(
            self.rows[kept],
            self.repetition[kept],
            self.presence[kept],
            self.frequency[kept],
            tuple(history for history in self.histories if history.row in rows),
        )


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of R rows.

    Attributes:
        temperature: float32 [R]; 0 is greedy.
        top_k: int32 [R]; 0 is off.
        top_p: float32 [R], in (0, 1].
        uniforms: float64 [R], in [0, 1): one draw per row.
        min_p: float32 [R], in [0, 1]; None: off.
        logprobs: int32 [R]: alternatives to report with a token's log-probability; -1: nothing; None: for no row.
    """

    temperature: Float32
    top_k: Int32
    top_p: Float32
    uniforms: Float64
    min_p: Float32 | None = None
    bias: LogitBias | None = None
    penalties: Penalties | None = None
    logprobs: Int32 | None = None
    masks: Masks | None = None

    @property
    def is_greedy(self) -> bool:
        """Return whether every row takes its model's likeliest token, and reports nothing else."""
        return self.fits_graph and self.penalties is None and not self.temperature.any()

    @property
    def fits_graph(self) -> bool:
        """Return whether a graph can sample the batch: only penalties of counted tokens change its logits."""
        counted = self.penalties is None or not self.penalties.histories
        return counted and self.bias is None and self.masks is None and not len(self.logprob_rows)

    @cached_property
    def logprob_rows(self) -> Int64:
        """Rows that report log-probabilities: int64 [P]."""
        return np.flatnonzero(self.logprobs >= 0) if self.logprobs is not None else np.zeros(0, np.int64)

    def draw_of(self, row: int) -> "SamplingBatch":
        """Sampling parameters of one row, for its draw."""
        own = slice(row, row + 1)
        min_p = None if self.min_p is None else self.min_p[own]
        return SamplingBatch(
            self.temperature[own], self.top_k[own], self.top_p[own], self.uniforms[own], min_p
        )

    @property
    def alternatives(self) -> int:
        """The most alternatives that a row reports."""
        return max(0, int(self.logprobs.max())) if self.logprobs is not None else 0
