"""Latent KV cache interface and its PyTorch reference; `latent_cache_triton` does the same by kernels.

The reference holds whole sequences. Prefill uses it to stage prompts before their rows move on, and tests compare
it with caches that keep only some of the rows on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.device.copies import upload
from hiscore.models.deepseek import expanded
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.expanded import Expanded, FullRows
from hiscore.models.deepseek.indexer import IndexQuery, index_scores, select_positions
from hiscore.models.deepseek.mla import Projected, attend_latents
from hiscore.models.deepseek.weights import MlaWeights

MAX_ELEMENTS = 2**24
"""Elements of one temporary tensor: 64 MiB of float32, a good size for a CPU."""


class LatentCache(Protocol):
    """Rows and index keys of all sequences of a forward. Its owner first sets where they are."""

    def keep(self, layer: int, row: Tensor, index_key: Tensor | None) -> None:
        """Keep new rows, [T, row_dim], and index keys, [T, index dim], None in a layer without an indexer."""

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        """Attend from q, [S, heads, row_dim], of the rows that `attend_full` leaves: [S, heads, latent_rank].

        The index selects rows to attend to; None: those of the last layer with an indexer.
        """
        ...

    def attend_full(self, layer: int, w: MlaWeights, new: Projected) -> Tensor | None:
        """Attend to all tokens, for the rows that do, with keys and values expanded: [T, heads, value_dim].

        All of the new rows have been kept. Those in `selecting` are not written; None: all are to `attend`.
        """
        ...

    @property
    def selecting(self) -> Tensor | None:
        """int64 [S]: the rows that are to `attend`, ascending; None: all of them."""
        ...


@dataclass(frozen=True)
class Segment:
    """New rows of one sequence. A forward's rows are its segments, one after another."""

    slots: Tensor
    """int64 [length]: pool slots of all its tokens, by position. The last `rows` of them are new."""
    rows: int
    full: bool = False
    """Attend to all tokens instead of the indexer's selection."""
    absorbed: bool = False
    """Expand nothing, which is cheaper for few rows."""


@dataclass(frozen=True)
class _Piece:
    """A part of a segment, cut to bound the size of temporary tensors."""

    rows: slice
    slots: Tensor  # int64 [N]: pool slots of the tokens up to the last one of the piece
    lengths: Tensor  # int64 [rows]: how many tokens each row sees
    select: bool


class StagedLatents:
    """`LatentCache` of whole sequences in a pool of slots, on any device."""

    def __init__(
        self,
        a: DsaArchitecture,
        slots: int,
        device: torch.device,
        dtype: torch.dtype,
        top_k: int | None = None,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        """Allocate a pool for `slots` tokens.

        Args:
            top_k: Tokens selected for a row; None: as many as the checkpoint says.
            max_elements: Elements of one temporary tensor at most.
        """
        self._a, self._device, self._max_elements = a, device, max_elements
        self._top_k = a.indexer.top_k if top_k is None else top_k
        self.pool = torch.empty((a.layers, slots, 1, 1, a.row_dim), dtype=dtype, device=device)
        """[layers, slots, 1, 1, row_dim]"""
        self.index_layers = tuple(layer for layer in range(a.layers) if a.own_index[layer])
        self._index_of = {layer: index for index, layer in enumerate(self.index_layers)}
        keys = (len(self.index_layers), slots, a.indexer.head_dim)
        self.index_keys = torch.empty(keys, dtype=dtype, device=device)
        """[layers with an indexer, slots, index dim]"""
        self._pieces: list[_Piece] = []
        self._new_slots = torch.empty(0, dtype=torch.int64, device=device)
        self._selected: list[Tensor | None] = []
        self._full: list[FullRows] = []
        self.selecting: Tensor | None = None

    def plan(self, segments: Sequence[Segment]) -> None:
        new = [segment.slots[len(segment.slots) - segment.rows :] for segment in segments]
        self._new_slots = torch.cat([self._new_slots[:0], *new])
        selects = self._split(segments)
        if selects:
            self._divide(selects)

    def _split(self, segments: Sequence[Segment]) -> list[Segment]:
        """Set which rows attend to all tokens, and return the others.

        That depends on a row's position alone, so that neither neighbours, nor where a prompt is cut, nor what of
        it was cached changes a bit.
        """
        self._full, self.selecting = [], None
        selects, selecting, first = [], [], 0
        for segment in segments:
            length = len(segment.slots)
            before = length - segment.rows
            seen = length if segment.full else 0 if segment.absorbed else min(length, self._top_k)
            middle, end = first + max(0, seen - before), first + segment.rows
            if middle > first:
                self._full.append(FullRows(slice(first, middle), segment.slots[:seen]))
            if end > middle:
                selects.append(Segment(segment.slots, end - middle))
                selecting.append(np.arange(middle, end))
            first = end
        if self._full:
            self.selecting = upload(np.concatenate([np.empty(0, np.int64), *selecting]), self._device)
        return selects

    def _divide(self, segments: Sequence[Segment]) -> None:
        self._pieces, first = [], 0
        for segment in segments:
            self._cut(segment, first)
            first += segment.rows
        self._selected = [None] * len(self._pieces)

    def _cut(self, segment: Segment, first: int) -> None:
        a, length = self._a, len(segment.slots)
        widest = max(a.heads * length, a.indexer.heads * length, min(self._top_k, length) * a.row_dim)
        step = max(1, self._max_elements // widest)
        for begin in range(0, segment.rows, step):
            end = min(begin + step, segment.rows)
            before = length - segment.rows
            self._pieces.append(
                _Piece(
                    rows=slice(first + begin, first + end),
                    slots=segment.slots[: before + end],
                    lengths=torch.arange(before + begin + 1, before + end + 1, device=self._device),
                    select=before + end > self._top_k,
                )
            )

    def keep(self, layer: int, row: Tensor, index_key: Tensor | None) -> None:
        self.pool[layer, self._new_slots, 0, 0] = row
        if index_key is not None:
            self.index_keys[self._index_of[layer], self._new_slots] = index_key

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        if index is not None:
            keys = self.index_keys[self._index_of[layer]]
            self._selected = [self._select(piece, index, keys) for piece in self._pieces]
        pool = self.pool[layer, :, 0, 0]
        out = q.new_empty((*q.shape[:2], self._a.latent_rank))
        for piece, selected in zip(self._pieces, self._selected, strict=True):
            if selected is None:
                slots = piece.slots
                hidden = torch.arange(len(slots), device=self._device) >= piece.lengths[:, None]
            else:
                slots, hidden = piece.slots[selected.clamp_min(0)], selected < 0
            out[piece.rows] = attend_latents(
                q[piece.rows], pool[slots], hidden, self._a.attention_scale, self._a.latent_rank
            )
        return out

    def attend_full(self, layer: int, w: MlaWeights, new: Projected) -> Tensor | None:
        if not self._full:
            return None
        a, pool = self._a, self.pool[layer, :, 0, 0]
        out = new.nope.new_empty((len(new.nope), a.heads, a.value_dim))
        for group in expanded.groups(self._full):
            rows = pool[torch.cat([each.slots for each in group])]
            for heads in expanded.heads_at_once(a, len(rows), self._expanded_elements):
                self._attend_expanded(new, expanded.expand(w, a, rows, heads), group, heads, out)
        return out

    @property
    def _expanded_elements(self) -> int:
        """Numbers of keys and values that are expanded at once, beside which logits of fewer exist in float32."""
        return self._max_elements // 4

    def _attend_expanded(
        self, new: Projected, seen: Expanded, group: Sequence[FullRows], heads: slice, out: Tensor
    ) -> None:
        """Write what some heads attend to; see `expanded.attend`."""
        expanded.attend(new, seen, group, heads, self._a.attention_scale, out)

    def _select(self, piece: _Piece, index: IndexQuery, keys: Tensor) -> Tensor | None:
        """Positions int32 [rows, top_k], or None where every row sees all its tokens."""
        if not piece.select:
            return None
        query = IndexQuery(index.q[piece.rows], index.gates[piece.rows])
        positions, _ = select_positions(index_scores(query, keys[piece.slots]), piece.lengths, self._top_k)
        return positions
