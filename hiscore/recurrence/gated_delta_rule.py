"""The gated delta rule over spans of tokens, in PyTorch.

A head's state S maps keys to values. A token of key k and value v first lets S decay, then corrects what S has for
k: S becomes exp(decay) S, then S + beta k (v - k S). Its query reads the new state. Tokens are computed by chunks:
inside a chunk a triangular system takes the place of the steps, and the state is read and written once.

Gated Delta Networks, https://arxiv.org/abs/2412.06464, section 3.3.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.recurrence.metadata import CHUNK, SpanBatch


class Tokens(NamedTuple):
    """Inputs of the rule, for T tokens.

    Attributes:
        q, k: [T, heads, key_dim], of unit length; q divided by the root of key_dim.
        v: [T, heads, value_dim].
        decay: [T, heads]: the logarithm of the share of the state that is kept.
        beta: [T, heads]: the share of a correction that is written.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


class GatedDeltaRule:
    """The rule over the spans of a batch, whose tables serve all layers."""

    def __init__(self, batch: SpanBatch) -> None:
        lengths = np.diff(batch.cu_seqlens)
        short = np.flatnonzero(lengths <= CHUNK)
        # Padded to powers of two: a short item beside a long one costs at most twice its tokens.
        sizes = 1 << np.ceil(np.log2(lengths[short])).astype(np.int64)
        self._groups: list[_OneChunkEach | _ManyChunks] = [
            _OneChunkEach(batch, short[sizes == size], int(size)) for size in np.unique(sizes)
        ]
        if len(short) < len(lengths):
            self._groups.append(_ManyChunks(batch, np.flatnonzero(lengths > CHUNK)))

    def __call__(self, tokens: Tokens, states: Tensor) -> Tensor:
        """Compute all spans: [T, heads, value_dim].

        `states`, [states, heads, key_dim, value_dim], holds those with which spans begin, and gets those left.
        """
        out = torch.empty_like(tokens.v)
        for group in self._groups:
            group.compute(tokens, states, out)
        return out


class _Chunks(NamedTuple):
    """N chunks of C tokens, computed as far as that is possible without their first states."""

    queries: Tensor  # [N, heads, C, key_dim]: what reads the first state
    weights: Tensor  # [N, heads, C, C]: what reads the corrections
    corrections: Tensor  # [N, heads, C, value_dim]
    known: Tensor  # [N, heads, C, key_dim]: what of the first state the corrections subtract
    keys: Tensor  # [N, heads, C, key_dim]: where corrections are written
    decays: Tensor  # [N, heads, 1, 1]: the logarithm of the share of the first state that is kept

    @classmethod
    def of(cls, tokens: Tokens, rows: Tensor, padding: Tensor) -> "_Chunks":
        """Compute chunks of the tokens at `rows`, int64 [N, C]; where `padding` is true there is none."""
        q, k, v, decay, beta = (each[rows].transpose(1, 2) for each in tokens)
        decay, beta = (each.masked_fill(padding[:, None], 0) for each in (decay, beta))
        kept = decay.cumsum(-1)
        after = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool).triu(1)
        between = (kept[..., None] - kept[..., None, :]).masked_fill(after, float("-inf")).exp()
        written, from_start = k * beta[..., None], kept.exp()[..., None]
        right = torch.cat((v * beta[..., None], written * from_start), dim=-1)
        system = (written @ k.mT) * between
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        corrections, known = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
        to_end = (kept[..., -1:] - kept).exp()[..., None]
        return cls(q * from_start, (q @ k.mT) * between, corrections, known, k * to_end, kept[..., -1:, None])

    def at(self, chosen: "slice | Tensor") -> "_Chunks":
        return _Chunks(*(each[chosen] for each in self))

    def left(self, state: Tensor, corrections: Tensor) -> Tensor:
        """The states after the chunks, [N, heads, key_dim, value_dim]."""
        return state * self.decays.exp() + self.keys.mT @ corrections


class _OneChunkEach:
    """Spans of at most a chunk, padded to one size."""

    def __init__(self, batch: SpanBatch, spans: Int64, size: int) -> None:
        self._rows, padding = _table(batch.cu_seqlens[spans], np.diff(batch.cu_seqlens)[spans], size)
        self._padding, self._real = padding, ~padding
        starts = batch.starts[spans]
        edges = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(spans)]
        self._parts = [(int(starts[first]), slice(first, last)) for first, last in pairwise(edges)]
        self._ends = torch.from_numpy(batch.ends[spans]) if len(batch.ends) else None

    def compute(self, tokens: Tokens, states: Tensor, out: Tensor) -> None:
        chunks = _Chunks.of(tokens, self._rows, self._padding)
        for start, part in self._parts:
            some, state = chunks.at(part), states[start]
            # Items of one query share its state: one product for all of them.
            known, read = (_together(each, state) for each in (some.known, some.queries))
            corrections = some.corrections - known
            values = (read + some.weights @ corrections).transpose(1, 2)
            out[self._rows[part][self._real[part]]] = values[self._real[part]]
            if self._ends is not None:
                states[self._ends[part]] = some.left(state, corrections)


class _ManyChunks:
    """Spans of more than a chunk: the loop over chunks is in step for all of them."""

    def __init__(self, batch: SpanBatch, spans: Int64) -> None:
        lengths = np.diff(batch.cu_seqlens)[spans]
        order = np.argsort(-lengths, kind="stable")
        spans, lengths = spans[order], lengths[order]
        counts = -(-lengths // CHUNK)
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) - before.repeat(counts)
        first = batch.cu_seqlens[spans].repeat(counts) + places * CHUNK
        left = np.minimum(CHUNK, lengths.repeat(counts) - places * CHUNK)
        self._rows, self._padding = _table(first, left, CHUNK)
        # In each step the spans that still have a chunk are the first ones.
        self._steps = [torch.from_numpy(before[counts > step] + step) for step in range(int(counts[0]))]
        self._starts = torch.from_numpy(batch.starts[spans])
        self._ends = torch.from_numpy(batch.ends[spans]) if len(batch.ends) else None

    def compute(self, tokens: Tokens, states: Tensor, out: Tensor) -> None:
        chunks, state = _Chunks.of(tokens, self._rows, self._padding), states[self._starts]
        for step in self._steps:
            some, going_on = chunks.at(step), state[: len(step)]
            corrections = some.corrections - some.known @ going_on
            values = (some.queries @ going_on + some.weights @ corrections).transpose(1, 2)
            real = ~self._padding[step]
            out[self._rows[step][real]] = values[real]
            state[: len(step)] = some.left(going_on, corrections)
        if self._ends is not None:
            states[self._ends] = state


def _together(x: Tensor, state: Tensor) -> Tensor:
    """The product of x, [N, heads, C, key_dim], and one state, [heads, key_dim, value_dim]."""
    product = x.transpose(0, 1).flatten(1, 2) @ state
    return product.view(len(state), len(x), -1, state.shape[-1]).transpose(0, 1)


def _table(first: Int64, lengths: Int64, size: int) -> tuple[Tensor, Tensor]:
    """Rows of runs of tokens, int64 [N, size], and which of them are padding, bool [N, size]."""
    offsets = np.arange(size)
    padding = offsets >= lengths[:, None]
    rows = np.where(padding, first[:, None], first[:, None] + offsets)
    return torch.from_numpy(rows), torch.from_numpy(padding)
