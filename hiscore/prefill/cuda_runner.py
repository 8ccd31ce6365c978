"""`Runner` for a CUDA device: kernels between the matrix products, one CUDA graph for each number of rows.

A forward is launched without waiting for anything: its inputs travel in one pinned copy for the whole batch, and
a captured graph replays all layers. Rows are padded up to the next captured number; the padding belongs to no
segment and no tile, so nothing real ever reads it.
"""

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.attention.metadata import NO_SLOT, Forward
from hiscore.attention.packed_triton import TileInputs, TritonAttention
from hiscore.attention.tiles import TILE_FIELDS, cut_into_tiles, max_tiles
from hiscore.layers.triton_ops import TritonOps
from hiscore.models.decoder import Decoder, Rows

log = logging.getLogger(__name__)


# Contexts in the pool that one forward may name, counted in tokens.
MAX_CONTEXT_SLOTS = 2**22
# Of a row: token, position, begin and end of its segment, where its keys and values are kept.
ROW_FIELDS = 5
# Whole numbers of 16 bytes, so that every array of a layout is aligned alike and kernels compile once.
ALIGN = 4


def buckets(max_rows: int) -> list[int]:
    """Numbers of rows to capture: steps of an eighth, so that padding costs 6% on average and 12% at most."""
    found, rows = [], 64
    while rows < max_rows:
        found.append(rows)
        rows += max(64, 2 ** (rows.bit_length() - 4))
    return [*found, -(-max_rows // 64) * 64]


@dataclass(frozen=True)
class Layout:
    """Where a forward's inputs stand in one int32 buffer, for a number of rows."""

    rows: int
    tiles: int

    def pack(self, forward: Forward, rows_per_tile: int) -> tuple[Int32, Int32]:
        """The buffer's used part, and the context's slots."""
        cut = cut_into_tiles(forward, rows_per_tile)
        count = len(forward.input_ids)
        of_rows = ROW_FIELDS * self.rows
        buffer = np.zeros(of_rows + ALIGN + cut.tiles.size, np.int32)
        rows = buffer[:of_rows].reshape(ROW_FIELDS, self.rows)
        rows[0, :count], rows[1, :count] = forward.input_ids, forward.positions
        rows[2, :count], rows[3, :count] = cut.segment_starts, cut.segment_ends
        rows[4, :count], rows[4, count:] = forward.slot_mapping, NO_SLOT
        buffer[of_rows : of_rows + 2] = len(cut.tiles), cut.scored
        buffer[of_rows + ALIGN :] = cut.tiles.ravel()
        return buffer, cut.context_slots

    @property
    def size(self) -> int:
        return ROW_FIELDS * self.rows + ALIGN + self.tiles * TILE_FIELDS

    def views(self, buffer: Tensor, context_slots: Tensor) -> tuple[Tensor, Tensor, Tensor, TileInputs]:
        """Token ids, positions, write slots, and attention's inputs."""
        rows, rest = buffer[: ROW_FIELDS * self.rows], buffer[ROW_FIELDS * self.rows :]
        ids, positions, starts, ends, write = rows.view(ROW_FIELDS, self.rows)
        inputs = TileInputs(positions, starts, ends, rest[ALIGN:], rest[:2], context_slots)
        return ids, positions, write, inputs


class CudaRunner:
    """Launches forwards on the current stream of a CUDA device."""

    def __init__(self, decoder: Decoder, slots: int, max_rows: int, graphs: bool = True) -> None:
        a = decoder.architecture
        self._decoder = decoder
        self._device = decoder.device
        properties = torch.cuda.get_device_properties(self._device)
        self._ops = TritonOps(a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation)
        self._attention = TritonAttention(
            decoder.attention_shape, decoder.dtype, properties.multi_processor_count
        )
        self.pool = decoder.new_pool(slots)
        per_tile = self._attention.rows_per_tile
        # Every group has a row, so there are at most as many groups as rows.
        self._layouts = [Layout(rows, max_tiles(rows, rows, per_tile)) for rows in buckets(max_rows)]
        self._static = torch.zeros(self._layouts[-1].size, dtype=torch.int32, device=self._device)
        self._slots = torch.zeros(MAX_CONTEXT_SLOTS, dtype=torch.int32, device=self._device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        if graphs:
            self._capture()

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        if not forwards:
            width = self._decoder.architecture.hidden_size
            return torch.empty((0, width), dtype=self._decoder.dtype, device=self._device)
        layouts = [next(x for x in self._layouts if x.rows >= len(f.input_ids)) for f in forwards]
        parts: list[Int32] = []
        for forward, layout in zip(forwards, layouts, strict=True):
            buffer, slots = layout.pack(forward, self._attention.rows_per_tile)
            if len(slots) > MAX_CONTEXT_SLOTS:
                raise ValueError(
                    f"a forward names {len(slots)} cached tokens, at most {MAX_CONTEXT_SLOTS} fit"
                )
            parts += [buffer, slots, forward.scored_rows.astype(np.int32)]
        staged = torch.empty(sum(map(len, parts)), dtype=torch.int32, pin_memory=True)
        np.concatenate(parts, out=staged.numpy())
        inputs = iter(staged.to(self._device, non_blocking=True).split([len(part) for part in parts]))
        return torch.cat(
            [self._forward(layout, next(inputs), next(inputs), next(inputs)) for layout in layouts]
        )

    def _forward(self, layout: Layout, buffer: Tensor, slots: Tensor, scored: Tensor) -> Tensor:
        self._static[: len(buffer)].copy_(buffer)
        if len(slots):
            self._slots[: len(slots)].copy_(slots)
        if layout.rows in self._graphs:
            graph, (x, attended) = self._graphs[layout.rows]
            graph.replay()
        else:
            x, attended = self._body(layout)
        return self._decoder.tail(x[scored], attended[scored], self._ops)

    def _body(self, layout: Layout) -> tuple[Tensor, Tensor]:
        ids, positions, write, self._attention.inputs = layout.views(self._static, self._slots)
        rows = Rows(ids, positions, [write] * self._decoder.architecture.layers)
        return self._decoder.body(rows, self._ops, self._attention, self.pool)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Capture the layers for every number of rows, the largest first: the others reuse its memory."""
        before = torch.cuda.memory_reserved(self._device)
        memory = None
        # A graph that the collector happens to destroy while another is captured would spoil the capture.
        gc.collect()
        gc.disable()
        try:
            for done, layout in enumerate(reversed(self._layouts), start=1):
                memory = self._capture_one(layout, memory)
                if done % 8 == 0 or done == len(self._layouts):
                    log.info("captured %d of %d CUDA graphs", done, len(self._layouts))
        finally:
            gc.enable()
        used = torch.cuda.memory_reserved(self._device) - before
        log.info("CUDA graphs for up to %d rows hold %d MiB", self._layouts[-1].rows, used >> 20)

    def _capture_one(self, layout: Layout, memory: Any) -> Any:
        # Zero tiles and no kept rows: what compiles and warms up here reads and writes nothing real.
        self._static.zero_()
        self._static[4 * layout.rows : ROW_FIELDS * layout.rows] = NO_SLOT
        self._body(layout)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            outputs = self._body(layout)
        self._graphs[layout.rows] = graph, outputs
        return graph.pool()
