"""`Runner` on CUDA: Triton kernels between the matrix products, and CUDA graphs for each number of rows.

The host launches forwards without waiting for them: the inputs of a whole batch lie in one piece of pinned memory,
captured graphs replay all layers, and another one the tail of the rows that are read, if they are not too many.
Rows are padded to the next captured number. Padding belongs to no segment and no tile, so no real row reads it.
Many rows of one whole prompt have other graphs, in which FlashInfer attends to the rows and not to pages. There
padding is a segment, whose values the prompt's last rows multiply by zero.

Many rows have a graph for each slice of the layers. Between two of them a forward of few rows may be launched: it
has inputs and outputs of its own, and of a slice nothing is needed but the residual stream, in the outputs.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.attention.base import Attention
from hiscore.attention.flashinfer_prefill import FlashInferAttention
from hiscore.attention.flashinfer_rows import is_whole
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS, NO_SLOTS, Forward
from hiscore.attention.packed_triton import TritonAttention
from hiscore.attention.tile_inputs import window_slots
from hiscore.device.copies import PinnedArray, PinnedArrays
from hiscore.device.graphs import GraphCapture, StaticOutputs
from hiscore.layers.triton_ops import AdaptedTritonOps, TritonOps
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.prefill.input_layout import (
    MAX_TAIL_ROWS,
    NO_ROWS,
    SCORED_STEP,
    InputLayout,
    StaticInputs,
    pad_scored,
)
from hiscore.prefill.interface import Runner, launch_all
from hiscore.prefill.pools import Pools
from hiscore.prefill.row_counts import MIN_ROWS, capture_sizes, rows_between, slices_of
from hiscore.recurrence.triton_recurrence import TritonRecurrence

log = logging.getLogger(__name__)

Graph = tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]


class CudaRunner(Runner):
    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        max_rows: int,
        pools: Pools | None = None,
        paged_attention: FlashInferAttention | None = None,
        in_slices: bool = False,
        states: int = 0,
    ) -> None:
        """Allocate pools, if there are none, and capture graphs. For the arguments see `make_runner`."""
        a = decoder.architecture
        self._decoder = decoder
        self._device = decoder.device
        properties = torch.cuda.get_device_properties(self._device)
        self._row_counts = capture_sizes(max_rows)
        sizes = (a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms)
        adapters = decoder.adapters
        self._ops = decoder.over_ranks(AdaptedTritonOps(adapters, *sizes) if adapters else TritonOps(*sizes))
        self._pools = Pools.of(decoder, slots, states) if pools is None else pools
        self.pool, self._by_layer = self._pools.shared, self._pools.by_layer(a.keyless)
        self._attention = TritonAttention(
            decoder.attention_shape, decoder.dtype, properties.multi_processor_count, self._pools.windows
        )
        self._recurrence: TritonRecurrence | None = None
        if a.recurrence is not None and self._pools.states is not None:
            self.steps = self._recurrence = TritonRecurrence(
                a.recurrence, self._pools.states, a.norm_eps, properties.multi_processor_count
            )
        self._paged_attention = paged_attention
        self._layouts = [InputLayout(rows) for rows in self._row_counts]
        largest = self._layouts[-1]
        self.between = rows_between(max_rows, in_slices)
        make = partial(
            StaticInputs,
            rows_per_tile=self._attention.rows_per_tile,
            windowed=bool(self._pools.windows),
            taps=0 if self._recurrence is None or a.recurrence is None else a.recurrence.taps,
            device=self._device,
        )
        self._many_rows = make(largest, self.between)
        self._few_rows = make(self._layout_of(self.between), 0) if self.between else self._many_rows
        self._row_slots = self._pools.first_row + torch.arange(
            largest.rows, dtype=torch.int32, device=self._device
        )
        self._outputs = StaticOutputs()
        self._graphs: dict[int, list[Graph]] = {}
        self._whole_graphs: dict[int, list[Graph]] = {}
        self._scored = torch.zeros(MAX_TAIL_ROWS, dtype=torch.int32, device=self._device)
        self._final = StaticOutputs()
        self._tails: dict[int, Graph] = {}
        self._capture()

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        if not forwards:
            width = self._decoder.architecture.hidden_size
            return torch.empty((0, width), dtype=self._decoder.dtype, device=self._device)
        arrays = PinnedArrays(self._device)
        launches = [self.in_slices(forward, arrays) for forward in forwards]
        hidden = [launch_all(slices) for slices in launches]
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def slices(self, forward: Forward) -> int:
        return len(self._graphs.get(self._layout_of(len(forward.input_ids)).rows, [None]))

    def in_slices(self, forward: Forward, arrays: PinnedArrays) -> Generator[None, None, Tensor]:
        layout = self._layout_of(len(forward.input_ids))
        scored, behind = pad_scored(forward.scored_rows), NO_ROWS
        if len(scored) <= MAX_TAIL_ROWS:
            scored, behind = NO_ROWS, scored
        buffer, slots = self._pack(layout, forward, behind)
        if len(slots) > MAX_CONTEXT_SLOTS:
            raise ValueError(f"a forward reads {len(slots)} cached tokens, at most {MAX_CONTEXT_SLOTS} fit")
        windows = window_slots(forward) if self._pools.windows else NO_SLOTS
        states: Int32 = NO_ROWS
        if self._recurrence is not None and forward.states is not None:
            states = self._recurrence.tables.of(forward.states)
        parts = [arrays.add(each) for each in (buffer, slots, windows, states, scored)]
        return self._launch(layout, forward, parts, len(behind))

    def _layout_of(self, rows: int) -> InputLayout:
        return self._layouts[bisect_left(self._row_counts, rows)]

    def _inputs_of(self, layout: InputLayout) -> StaticInputs:
        return self._few_rows if layout.rows <= self.between else self._many_rows

    def _pack(self, layout: InputLayout, forward: Forward, scored: Int32) -> tuple[Int32, Int32 | Int64]:
        if self._paged_attention:
            return layout.pack_rows(forward, scored), NO_SLOTS
        return layout.pack(forward, self._attention.rows_per_tile, scored)

    def _launch(
        self, layout: InputLayout, forward: Forward, parts: Sequence[PinnedArray], behind: int
    ) -> Generator[None, None, Tensor]:
        """Launch a forward, a slice at each step; returns the final states of the rows that are read.

        Args:
            forward: Planned by FlashInfer, if that attends.
            parts: Arrays to copy: its buffer, slots of contexts and of windows, the table of its states; the rows
                to read if they are many.
            behind: Number of rows to read at the buffer's end; 0: they are in `parts`, if any.
        """
        *filled, many = parts
        inputs = self._inputs_of(layout)
        with inputs.held():
            attention, captured = self._plan(layout, forward)
            inputs.fill(*filled)
            used = len(filled[0])
            scored = inputs.buffer[used - behind : used] if behind else many.to(self._device)
            if layout.rows not in captured:
                final = self._tail(scored, *self._body(layout, attention), *self._ids(layout))
            else:
                graphs = captured[layout.rows]
                for graph, _ in graphs[:-1]:
                    graph.replay()
                    yield
                graph, outputs = graphs[-1]
                graph.replay()
                final = self._replay_tail(inputs.first_row, outputs, scored)
            # The next forward overwrites them.
            return final[: len(forward.scored_rows)].clone()

    def _plan(self, layout: InputLayout, forward: Forward) -> tuple[Attention, dict[int, list[Graph]]]:
        """Attention of a forward, already planned if it is FlashInfer's, and its graphs."""
        paged = self._paged_attention
        if paged is None:
            return self._attention, self._graphs
        if is_whole(forward) and (over_rows := paged.over_rows(layout.rows)):
            over_rows.plan(len(forward.input_ids), layout.rows)
            return over_rows, self._whole_graphs
        paged.plan(forward)
        return paged, self._graphs

    def _replay_tail(self, first_row: int, outputs: tuple[Tensor, ...], scored: Tensor) -> Tensor:
        """The tail of some rows of a graph's outputs, which begin at a row of the static ones."""
        if len(scored) not in self._tails:
            return self._tail(scored, *outputs)
        torch.add(scored, first_row, out=self._scored[: len(scored)])
        graph, (final,) = self._tails[len(scored)]
        graph.replay()
        return final

    def _body(
        self, layout: InputLayout, attention: Attention, span: range | None = None, x: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs = self._inputs_of(layout)
        views = layout.views(inputs.buffer, inputs.context_slots, inputs.tables)
        ids, positions, angles, slot_mapping, tiles = views
        if attention is self._attention:
            self._attention.inputs = replace(tiles, window_slots=inputs.window_slots)
            if span is None or not span.start:
                self._attention.cut_into_tiles()
        if self._recurrence is not None:
            self._recurrence.table = inputs.state_table
        windows = self._pools.windows
        slot_mappings = [
            self._row_slots[: layout.rows] if layer in windows else slot_mapping
            for layer in range(self._decoder.architecture.layers)
        ]
        rows = ModelInputs(ids, positions, slot_mappings, angles)
        return self._decoder.body(rows, self._ops, attention, self._by_layer, span, x, self._recurrence)

    def _ids(self, layout: InputLayout) -> tuple[Tensor, ...]:
        """Token ids, int32 [rows], which the tail needs under adapters."""
        buffer = self._inputs_of(layout).buffer
        return (buffer[: layout.rows],) if self._decoder.adapters else ()

    def _tail(self, scored: Tensor, x: Tensor, attended: Tensor, *ids: Tensor) -> Tensor:
        x, attended, *of_rows = (each.index_select(0, scored) for each in (x, attended, *ids))
        return self._decoder.tail(x, attended, self._ops, *of_rows)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Capture the layers for every number of rows, the largest first: the rest reuse its memory."""
        with GraphCapture(self._device) as capture:
            for done, layout in enumerate(reversed(self._layouts), start=1):
                self._capture_one(layout, capture)
                if done % 8 == 0 or done == len(self._layouts):
                    log.info("captured CUDA graphs for %d of %d numbers of rows", done, len(self._layouts))
            for rows in range(MAX_TAIL_ROWS, MIN_ROWS - 1, -SCORED_STEP):
                self._capture_tail(rows, capture)
        rows, used = self._layouts[-1].rows, capture.bytes
        log.info("CUDA graphs for up to %d rows hold %d MiB", rows, used >> 20)

    def _capture_one(self, layout: InputLayout, capture: GraphCapture) -> None:
        self._inputs_of(layout).clear(layout)
        paged = self._paged_attention
        if paged:
            paged.plan_rows(layout.rows)
        self._graphs[layout.rows] = self._graphs_of(layout, paged or self._attention, capture)
        if paged and (over_rows := paged.over_rows(layout.rows)):
            over_rows.plan(layout.rows, layout.rows)
            self._whole_graphs[layout.rows] = self._graphs_of(layout, over_rows, capture)

    def _graphs_of(self, layout: InputLayout, attention: Attention, capture: GraphCapture) -> list[Graph]:
        layers, first = self._decoder.architecture.layers, self._inputs_of(layout).first_row
        if not self._graphs:
            outputs = *self._body(layout, attention), *self._ids(layout)
            self._outputs.allocate(*outputs, rows=first + layout.rows)
        spans = slices_of(layout.rows, layers) if self.between else [range(layers)]
        launches = [partial(self._slice, layout, attention, span) for span in spans]
        for launch in launches:
            launch()
        torch.cuda.synchronize(self._device)
        return [self._captured(capture, launch) for launch in launches]

    def _slice(self, layout: InputLayout, attention: Attention, span: range) -> tuple[Tensor, ...]:
        """Compute some layers, and leave the residual stream; behind the last one attention's output, too."""
        first = self._inputs_of(layout).first_row
        before = self._outputs.rows(first, layout.rows)[0] if span.start else None
        x, attended = self._body(layout, attention, span, before)
        is_last = span.stop == self._decoder.architecture.layers
        left = (x, attended, *self._ids(layout)) if is_last else (x,)
        return self._outputs.keep(*left, first=first)

    def _capture_tail(self, rows: int, capture: GraphCapture) -> None:
        """Capture the tail of rows anywhere in the outputs of all graphs."""
        outputs = self._outputs.rows(0, self._many_rows.first_row + self._layouts[-1].rows)
        for each in outputs:
            each.zero_()
        scored = self._scored[:rows]
        self._final.allocate(self._tail(scored, *outputs))
        torch.cuda.synchronize(self._device)
        self._tails[rows] = self._captured(capture, lambda: self._final.keep(self._tail(scored, *outputs)))

    def _captured(self, capture: GraphCapture, launch: Callable[[], tuple[Tensor, ...]]) -> Graph:
        # NCCL's own thread asks for its events meanwhile.
        return capture.capture(launch, error_mode="thread_local" if self._decoder.ranks > 1 else "global")
