"""Where the decoder keeps its rows and whom it asks for attention: the interface, and one in plain torch.

The plain one holds whole sequences. It serves prefill, where prompts are staged before their rows move on, and it
is the reference for everything that keeps only a part of the rows near.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.indexer import IndexQuery, index_scores, select_positions
from hiscore.models.deepseek.mla import attend_latents

MAX_ELEMENTS = 2**24
"""Elements of one temporary, unless given: 64 MiB of float32, which suits a CPU."""


class LatentCache(Protocol):
    """Rows and index keys of all sequences of a forward; whoever runs it tells the cache where they stand."""

    def keep(self, layer: int, row: Tensor, index_key: Tensor | None) -> None:
        """Keep the new rows [T, row_dim] and, in a layer with its own indexer, their index keys [T, index dim]."""

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        """Attend for q [T, heads, row_dim]; returns [T, heads, latent_rank].

        Without a query of its own a layer uses the selection of the last layer that had one.
        """
        ...


@dataclass(frozen=True)
class Segment:
    """New rows of one sequence; segments follow each other in a forward's rows."""

    slots: Tensor
    """int64 [length]: where all its tokens stand, in order of position. The last `rows` of them are new."""
    rows: int
    full: bool = False
    """Attend to everything, whatever the indexer says."""


@dataclass(frozen=True)
class _Piece:
    """A part of a segment, small enough for its temporaries."""

    rows: slice
    slots: Tensor
    """int64 [N]: up to the piece's last token."""
    lengths: Tensor
    """int64 [rows]: how many tokens each row sees."""
    select: bool


class StagedLatents:
    """`LatentCache` over whole sequences in a pool of slots, on any device."""

    def __init__(
        self,
        a: DsaArchitecture,
        slots: int,
        device: torch.device,
        dtype: torch.dtype,
        top_k: int | None = None,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        """top_k: tokens selected for a row, the checkpoint's own number unless given."""
        self._a, self._device, self._max_elements = a, device, max_elements
        self._top_k = a.indexer.top_k if top_k is None else top_k
        self.pool = torch.empty((a.layers, slots, 1, 1, a.row_dim), dtype=dtype, device=device)
        """[layers, slots, 1, 1, row_dim]"""
        self.index_layers = tuple(layer for layer in range(a.layers) if a.own_index[layer])
        """The layers that have index keys, in their order."""
        self._index_of = {layer: index for index, layer in enumerate(self.index_layers)}
        self.index_keys = torch.empty(
            (len(self.index_layers), slots, a.indexer.head_dim), dtype=dtype, device=device
        )
        """[layers with an indexer, slots, index dim]"""
        self._pieces: list[_Piece] = []
        self._new_slots = torch.empty(0, dtype=torch.int64, device=device)
        self._selected: list[Tensor | None] = []

    def plan(self, segments: Sequence[Segment]) -> None:
        """Say where the next forward's rows stand."""
        new = [segment.slots[len(segment.slots) - segment.rows :] for segment in segments]
        self._new_slots = torch.cat([self._new_slots[:0], *new])
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
                    select=not segment.full and before + end > self._top_k,
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

    def _select(self, piece: _Piece, index: IndexQuery, keys: Tensor) -> Tensor | None:
        """Positions int32 [rows, top_k], or None where every row sees all its tokens."""
        if not piece.select:
            return None
        query = IndexQuery(index.q[piece.rows], index.gates[piece.rows])
        positions, _ = select_positions(index_scores(query, keys[piece.slots]), piece.lengths, self._top_k)
        return positions
