"""`Runner` on CUDA: Triton kernels between the matrix products, and one CUDA graph for each number of rows.

The host launches forwards without waiting for them: the inputs of a whole batch travel in one pinned copy, a
captured graph replays all layers, and another one the tail of the rows that are read, if they are not too many.
Rows are padded to the next captured number. Padding belongs to no segment and no tile, so no real row reads it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.attention import own_keys
from hiscore.attention.flashinfer_prefill import FlashInferAttention
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS, NO_SLOT, NO_SLOTS, Forward
from hiscore.attention.packed_triton import TileInputs, TritonAttention
from hiscore.attention.tiles import cut_into_tiles, max_tiles, window_slots
from hiscore.device import OnDevice, Uploads
from hiscore.graph_capture import GraphCapture, StaticOutputs
from hiscore.layers.triton_ops import TritonOps
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.prefill.pools import Pools
from hiscore.prefill.row_counts import MIN_ROWS, capture_sizes

log = logging.getLogger(__name__)

ROW_FIELDS = 5
"""Token id, position, place in the rotary tables, begin of its segment, KV slot."""
SCORED_STEP = 64
"""The rows that are read are padded to a multiple of this."""
MAX_TAIL_ROWS = 512
"""Rows whose tail has a graph. With more, the device computes longer than the host launches."""
ALIGN = 4
"""In int32: every array of a layout starts at a multiple of 16 bytes, so that kernels compile only once."""


def pad_scored(rows: Int64) -> Int32:
    """The rows to read, padded with row 0 to at least `MIN_ROWS`, unless there are none."""
    padded = np.zeros(max(-(-len(rows) // SCORED_STEP) * SCORED_STEP, MIN_ROWS) if len(rows) else 0, np.int32)
    padded[: len(rows)] = rows
    return padded


@dataclass(frozen=True)
class InputLayout:
    """Layout of a forward's inputs in one int32 buffer, for a number of rows with padding."""

    rows: int
    tiles: int

    def pack(self, forward: Forward, rows_per_tile: int) -> tuple[Int32, Int32]:
        """Lay out a forward.

        Returns:
            int32 [used]: the buffer up to the last column of its tiles.
            int32 [N]: the slots of all contexts.
        """
        cut = cut_into_tiles(forward, rows_per_tile)
        row_values = ROW_FIELDS * self.rows
        table = own_keys.with_own_keys(cut, rows_per_tile)
        buffer = np.zeros(row_values + ALIGN + len(table), np.int32)
        self._fill(buffer[:row_values], forward)[3, : len(forward.input_ids)] = cut.segment_starts
        buffer[row_values : row_values + 2] = len(cut.tiles), cut.scored
        buffer[row_values + ALIGN :] = table
        return buffer, cut.context_slots

    def pack_rows(self, forward: Forward) -> Int32:
        """What `pack` lays out of a forward's rows, without what is for our own attention."""
        buffer = np.zeros(ROW_FIELDS * self.rows, np.int32)
        self._fill(buffer, forward)
        return buffer

    def _fill(self, buffer: Int32, forward: Forward) -> Int32:
        rows = buffer.reshape(ROW_FIELDS, self.rows)
        count = len(forward.input_ids)
        rows[0, :count], rows[1, :count] = forward.input_ids, forward.positions
        rows[2, :count] = forward.positions if forward.angles is None else forward.angles
        rows[4, :count], rows[4, count:] = forward.slot_mapping, NO_SLOT
        return rows

    @property
    def size(self) -> int:
        """Of the whole buffer."""
        tiles = self.tiles * own_keys.FIELDS + own_keys.most_columns(self.rows)
        return ROW_FIELDS * self.rows + ALIGN + tiles

    def views(
        self, buffer: Tensor, context_slots: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, TileInputs]:
        """As views of `buffer`: what rows of `ModelInputs` are, int32 [rows] each, and attention's inputs.

        Returns:
            Token ids, positions, angles, slot mapping, inputs of attention.
        """
        rows, rest = buffer[: ROW_FIELDS * self.rows], buffer[ROW_FIELDS * self.rows :]
        ids, positions, angles, starts, slot_mapping = rows.view(ROW_FIELDS, self.rows)
        inputs = TileInputs(positions, starts, rest[ALIGN:], rest[:2], context_slots)
        return ids, positions, angles, slot_mapping, inputs


class CudaRunner:
    """Launches forwards on the current CUDA stream."""

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        max_rows: int,
        pools: Pools | None = None,
        paged_attention: FlashInferAttention | None = None,
    ) -> None:
        """Allocate a KV pool, if there is none, and capture graphs. For the arguments see `make_runner`."""
        a = decoder.architecture
        self._decoder = decoder
        self._device = decoder.device
        properties = torch.cuda.get_device_properties(self._device)
        self._ops = decoder.over_ranks(
            TritonOps(a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms)
        )
        self._pools = Pools(decoder.new_pool(slots)) if pools is None else pools
        self.pool, self._by_layer = self._pools.shared, self._pools.by_layer(a.layers)
        self._attention = TritonAttention(
            decoder.attention_shape, decoder.dtype, properties.multi_processor_count, self._pools.windows
        )
        self._paged_attention = paged_attention
        per_tile = self._attention.rows_per_tile
        # Every group has at least one row, so there are at most as many groups as rows.
        self._layouts = [
            InputLayout(rows, max_tiles(rows, rows, per_tile)) for rows in capture_sizes(max_rows)
        ]
        self._static = torch.zeros(self._layouts[-1].size, dtype=torch.int32, device=self._device)
        self._slots = torch.zeros(MAX_CONTEXT_SLOTS, dtype=torch.int32, device=self._device)
        self._window_slots = torch.zeros_like(self._slots) if self._pools.windows else None
        self._row_slots = self._pools.first_row + torch.arange(
            self._layouts[-1].rows, dtype=torch.int32, device=self._device
        )
        self._outputs = StaticOutputs()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = {}
        self._scored = torch.zeros(MAX_TAIL_ROWS, dtype=torch.int32, device=self._device)
        self._final = StaticOutputs()
        self._tails: dict[int, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = {}
        self._capture()

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward], uploads: Uploads | None = None) -> Tensor:
        if not forwards:
            width = self._decoder.architecture.hidden_size
            return torch.empty((0, width), dtype=self._decoder.dtype, device=self._device)
        layouts = [next(x for x in self._layouts if x.rows >= len(f.input_ids)) for f in forwards]
        uploads = uploads or Uploads(self._device)
        inputs: list[list[OnDevice]] = []
        for forward, layout in zip(forwards, layouts, strict=True):
            buffer, slots = self._pack(layout, forward)
            if len(slots) > MAX_CONTEXT_SLOTS:
                raise ValueError(
                    f"a forward reads {len(slots)} cached tokens, at most {MAX_CONTEXT_SLOTS} fit"
                )
            windows = NO_SLOTS if self._window_slots is None else window_slots(forward)
            scored = pad_scored(forward.scored_rows)
            inputs.append([uploads.add(each) for each in (buffer, slots, windows, scored)])
        hidden = []
        for forward, layout, parts in zip(forwards, layouts, inputs, strict=True):
            if self._paged_attention:
                self._paged_attention.plan(forward)
            final = self._forward(layout, *(each() for each in parts))
            hidden.append(final[: len(forward.scored_rows)].clone())
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def _pack(self, layout: InputLayout, forward: Forward) -> tuple[Int32, Int32]:
        if self._paged_attention:
            return layout.pack_rows(forward), np.empty(0, np.int32)
        return layout.pack(forward, self._attention.rows_per_tile)

    def _forward(
        self, layout: InputLayout, buffer: Tensor, slots: Tensor, windows: Tensor, scored: Tensor
    ) -> Tensor:
        """The final states of the rows read, with padding: overwritten by the next forward."""
        self._static[: len(buffer)].copy_(buffer)
        if len(slots):
            self._slots[: len(slots)].copy_(slots)
        if self._window_slots is not None and len(windows):
            self._window_slots[: len(windows)].copy_(windows)
        if layout.rows not in self._graphs:
            return self._tail(*self._body(layout), scored)
        graph, (x, attended) = self._graphs[layout.rows]
        graph.replay()
        if len(scored) not in self._tails:
            return self._tail(x, attended, scored)
        self._scored[: len(scored)].copy_(scored)
        graph, (final,) = self._tails[len(scored)]
        graph.replay()
        return final

    def _body(self, layout: InputLayout) -> tuple[Tensor, Tensor]:
        ids, positions, angles, slot_mapping, tiles = layout.views(self._static, self._slots)
        self._attention.inputs = replace(tiles, window_slots=self._window_slots)
        windows = self._pools.windows
        slot_mappings = [
            self._row_slots[: layout.rows] if layer in windows else slot_mapping
            for layer in range(self._decoder.architecture.layers)
        ]
        inputs = ModelInputs(ids, positions, slot_mappings, angles)
        return self._decoder.body(inputs, self._ops, self._paged_attention or self._attention, self._by_layer)

    def _tail(self, x: Tensor, attended: Tensor, scored: Tensor) -> Tensor:
        return self._decoder.tail(x.index_select(0, scored), attended.index_select(0, scored), self._ops)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Capture the layers for every number of rows, the largest first: the rest reuse its memory."""
        with GraphCapture(self._device) as capture:
            for done, layout in enumerate(reversed(self._layouts), start=1):
                self._capture_one(layout, capture)
                if done % 8 == 0 or done == len(self._layouts):
                    log.info("captured %d of %d CUDA graphs", done, len(self._layouts))
            for rows in range(MAX_TAIL_ROWS, MIN_ROWS - 1, -SCORED_STEP):
                self._capture_tail(rows, capture)
        rows, used = self._layouts[-1].rows, capture.bytes
        log.info("CUDA graphs for up to %d rows hold %d MiB", rows, used >> 20)

    def _capture_one(self, layout: InputLayout, capture: GraphCapture) -> None:
        # No tiles and no slots: what is compiled and warmed up here reads and writes no real data.
        self._static.zero_()
        self._static[(ROW_FIELDS - 1) * layout.rows : ROW_FIELDS * layout.rows] = NO_SLOT
        if self._paged_attention:
            self._paged_attention.plan_rows(layout.rows)
        self._outputs.allocate(*self._body(layout))
        torch.cuda.synchronize(self._device)
        self._graphs[layout.rows] = self._captured(capture, lambda: self._outputs.keep(*self._body(layout)))

    def _capture_tail(self, rows: int, capture: GraphCapture) -> None:
        """Capture the tail of rows anywhere in the outputs of the layers' graphs, which all begin alike."""
        _, (x, attended) = self._graphs[self._layouts[-1].rows]
        x.zero_()
        attended.zero_()
        scored = self._scored[:rows]
        self._final.allocate(self._tail(x, attended, scored))
        torch.cuda.synchronize(self._device)
        self._tails[rows] = self._captured(capture, lambda: self._final.keep(self._tail(x, attended, scored)))

    def _captured(
        self, capture: GraphCapture, launch: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        # NCCL's own thread asks for its events meanwhile.
        return capture.capture(launch, error_mode="thread_local" if self._decoder.ranks > 1 else "global")
