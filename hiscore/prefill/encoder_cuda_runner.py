"""`ForwardRunner` of an encoder on CUDA: one CUDA graph for each number of rows.

A captured graph replays all layers, and padding belongs to no segment and no tile, as in `cuda_runner`; but the
inputs of a whole batch travel in one pinned copy. Every graph leaves its results in the same two buffers.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.attention.bidirectional_triton import SegmentInputs, TritonBidirectionalAttention
from hiscore.attention.metadata import Forward
from hiscore.attention.tile_inputs import max_tiles
from hiscore.attention.tiles import cut_into_tiles
from hiscore.device.copies import OnDevice, Uploads
from hiscore.device.graphs import GraphCapture
from hiscore.device.numerics import at_least_float32
from hiscore.models.encoders.both_ways import AnyEncoder
from hiscore.models.encoders.encoder import EncoderInputs
from hiscore.prefill.input_layout import pad_scored
from hiscore.prefill.interface import ForwardRunner
from hiscore.prefill.row_counts import MIN_ROWS, capture_sizes

log = logging.getLogger(__name__)

ROW_FIELDS = 5
"""Token id, position, token type, begin and end of its segment."""
ALIGN = 4
"""Alignment in int32: arrays of a layout start at multiples of 16 bytes, so that kernels compile only once."""


@dataclass(frozen=True)
class EncoderLayout:
    """Layout of a forward's inputs in one int32 buffer, for a number of rows with padding."""

    rows: int
    tiles: int

    def pack(self, forward: Forward, rows_per_tile: int) -> Int32:
        """Lay out a forward: int32 [used], the buffer up to its last tile."""
        cut = cut_into_tiles(forward, rows_per_tile)
        count, row_values = len(forward.input_ids), ROW_FIELDS * self.rows
        buffer = np.zeros(row_values + ALIGN + cut.tiles.size, np.int32)
        rows = buffer[:row_values].reshape(ROW_FIELDS, self.rows)
        rows[0, :count], rows[1, :count], rows[2, :count] = (
            forward.input_ids, forward.positions, forward.token_types,
        )  # fmt: skip
        rows[3, :count], rows[4, :count] = cut.segment_starts, cut.segment_ends
        buffer[row_values : row_values + 2] = len(cut.tiles), cut.scored
        buffer[row_values + ALIGN :] = cut.tiles.ravel()
        return buffer

    @property
    def size(self) -> int:
        return ROW_FIELDS * self.rows + ALIGN + self.tiles * 2

    def views(self, buffer: Tensor) -> tuple[EncoderInputs, SegmentInputs]:
        """The inputs of the encoder and of its attention, as views of `buffer`."""
        rows, rest = buffer[: ROW_FIELDS * self.rows], buffer[ROW_FIELDS * self.rows :]
        ids, positions, types, starts, ends = rows.view(ROW_FIELDS, self.rows)
        return EncoderInputs(ids, positions, types), SegmentInputs(starts, ends, rest[ALIGN:], rest[:2])


def pad_pairs(forward: Forward) -> tuple[Int32, Int32]:
    """The rows to read and their number in each pair, padded for products of at least `MIN_ROWS` rows.

    The first pair of the padding has all its rows, for a mean that is never read.
    """
    scored, pairs = pad_scored(forward.scored_rows), len(forward.scored_items)
    if len(forward.scored_rows) == pairs:
        return scored, np.ones(len(scored), np.int32)
    lengths = np.zeros(max(MIN_ROWS, -(-(pairs + 1) // 64) * 64), np.int32)
    lengths[:pairs] = np.diff(forward.cu_seqlens)
    lengths[pairs] = len(scored) - len(forward.scored_rows)
    return scored, lengths


class CudaEncoderRunner(ForwardRunner):
    def __init__(self, encoder: AnyEncoder, max_rows: int) -> None:
        """Capture graphs for up to `max_rows` rows."""
        self._encoder, self._device = encoder, encoder.device
        properties = torch.cuda.get_device_properties(self._device)
        self._attention = TritonBidirectionalAttention(
            encoder.attention_shape, encoder.dtype, properties.multi_processor_count
        )
        per_tile = self._attention.rows_per_tile
        self._layouts = [
            EncoderLayout(rows, max_tiles(rows, 1, per_tile)) for rows in capture_sizes(max_rows)
        ]
        self._static = torch.zeros(self._layouts[-1].size, dtype=torch.int32, device=self._device)
        a, rows = encoder.architecture, self._layouts[-1].rows
        self._x = torch.empty(
            (rows, a.hidden_size), dtype=at_least_float32(encoder.dtype), device=self._device
        )
        self._attended = torch.empty((rows, a.attended), dtype=encoder.dtype, device=self._device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._capture()

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        nothing = self._x[:0, : self._encoder.architecture.head_width]
        layouts = [next(x for x in self._layouts if x.rows >= len(f.input_ids)) for f in forwards]
        uploads = Uploads(self._device)
        inputs: list[list[OnDevice]] = []
        for forward, layout in zip(forwards, layouts, strict=True):
            buffer = layout.pack(forward, self._attention.rows_per_tile)
            inputs.append([uploads.add(each) for each in (buffer, *pad_pairs(forward))])
        if not inputs:
            return nothing
        return torch.cat(
            [
                self._forward(layout, *(each() for each in parts))[: len(forward.scored_items)]
                for forward, layout, parts in zip(forwards, layouts, inputs, strict=True)
            ]
        )

    def _forward(self, layout: EncoderLayout, buffer: Tensor, scored: Tensor, lengths: Tensor) -> Tensor:
        self._static[: len(buffer)].copy_(buffer)
        if layout.rows in self._graphs:
            self._graphs[layout.rows].replay()
        else:
            self._body(layout)
        rows = self._encoder.tail(self._x.index_select(0, scored), self._attended.index_select(0, scored))
        return self._encoder.head(rows, lengths.long())

    def _body(self, layout: EncoderLayout) -> None:
        inputs, self._attention.inputs = layout.views(self._static)
        x, attended = self._encoder.body(inputs, self._attention)
        self._x[: layout.rows].copy_(x)
        self._attended[: layout.rows].copy_(attended)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Capture the layers for every number of rows, the largest first: the rest reuse its memory."""
        with GraphCapture(self._device) as capture:
            for layout in reversed(self._layouts):
                # No tiles: what is compiled and warmed up here reads no real data.
                self._static.zero_()
                self._body(layout)
                torch.cuda.synchronize(self._device)
                self._graphs[layout.rows], _ = capture.capture(partial(self._body, layout))
        log.info(
            "captured %d CUDA graphs for up to %d rows, which hold %d MiB",
            len(self._layouts), self._layouts[-1].rows, capture.bytes >> 20,
        )  # fmt: skip
