"""`StepRunner` for a CUDA device: one CUDA graph for each number of rows and reach of their contexts.

Rows are padded up to the next captured number; a padding row belongs to no stream and writes nothing. The reach
only sizes the grids: it changes no bit of a result.
"""

import gc
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.cache import DecodeRows
from hiscore.decoding.cuda_streams import CudaStreams
from hiscore.decoding.kernel_steps import KernelSteps
from hiscore.decoding.model import DecodeModel
from hiscore.decoding.steps import Steps
from hiscore.decoding.streams import Lane
from hiscore.decoding.uploads import upload
from hiscore.decoding.worker_api import Geometry, Int32

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
REACHES = (2_048, 8_192, 16_384)


def up_to(steps: tuple[int, ...], most: int, by: int) -> list[int]:
    """The steps below `most`, then on in multiples of `by`, and `most`."""
    more = range(steps[-1] + by, most, by)
    return [step for step in (*steps, *more) if step < most] + [most]


@dataclass(frozen=True)
class Kind:
    """What a graph is captured for. full: streams that attend to everything may be among the rows."""

    rows: int
    reach: int
    full: bool


@dataclass(frozen=True)
class Captured:
    """A graph, where it reads its rows (int32 [2, rows]), and what it leaves behind."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    results: tuple[Tensor, Tensor, Tensor]


class GraphRunner:
    """Captures at load what is common, and the rest when it first comes up."""

    def __init__(
        self,
        model: DecodeModel,
        attention: AttentionShape,
        value_width: int | None,
        geometry: Geometry,
        streams: CudaStreams,
        graphs: bool = True,
    ) -> None:
        self._model, self._attention, self._value_width = model, attention, value_width
        self._device = model.staging.device
        self.steps: Steps = self._steps(geometry.context_length, full=False)
        self.fed = torch.zeros(geometry.max_streams, dtype=torch.int32, device=self._device)
        self._rows = up_to(ROWS, geometry.max_streams, 16)
        self._reaches = up_to(REACHES, geometry.context_length, 2**30)
        self._use_graphs = graphs
        self._captured: dict[Kind, Captured] = {}
        self._memory: Any = None
        if graphs:
            with torch.cuda.stream(streams[Lane.FORWARD]):
                self._capture_common()

    def run(self, slots: Int32, positions: Int32, full: bool) -> tuple[Tensor, Tensor, Tensor]:
        """See `StepRunner`."""
        count, longest = len(slots), int(positions.max()) + 1
        kind = Kind(
            next(rows for rows in self._rows if rows >= count),
            next(reach for reach in self._reaches if reach >= longest),
            full,
        )
        padded = np.zeros((2, kind.rows), np.int32)
        padded[0] = -1
        padded[:, :count] = slots, positions
        rows = upload(padded, self._device)
        if not self._use_graphs:
            logits, home, buffer = self._step(rows, self._steps(kind.reach, full))
            return logits[:count], home[:count], buffer[:count]
        if kind not in self._captured:
            log.info("capturing a CUDA graph for %s", kind)
            self._capture(kind, rows)
        captured = self._captured[kind]
        captured.rows.copy_(rows)
        captured.graph.replay()
        logits, home, buffer = captured.results
        # The next step may be replayed before these two have been read in the other lane.
        return logits[:count], home[:count].clone(), buffer[:count].clone()

    def _steps(self, reach: int, full: bool) -> KernelSteps:
        return KernelSteps(self._model.cache, self._attention, reach, full, self._value_width)

    def _step(self, rows: Tensor, steps: KernelSteps) -> tuple[Tensor, Tensor, Tensor]:
        of = DecodeRows(rows[0], rows[1])
        return self._model.step(torch.index_select(self.fed, 0, of.streams), of, steps)

    @torch.inference_mode()
    def _capture_common(self) -> None:
        before = torch.cuda.memory_reserved(self._device)
        for reach in reversed(self._reaches):
            for count in reversed(self._rows):
                # Padding alone: what warms up reads and writes nothing of a stream.
                rows = torch.zeros((2, count), dtype=torch.int32, device=self._device)
                rows[0] = -1
                self._capture(Kind(count, reach, False), rows)
        used = torch.cuda.memory_reserved(self._device) - before
        log.info("captured %d CUDA graphs of steps, which hold %d MiB", len(self._captured), used >> 20)

    def _capture(self, kind: Kind, rows: Tensor) -> None:
        steps, static = self._steps(kind.reach, kind.full), rows.clone()
        # A step may be run twice: it writes the same again, and only counts of hits see it. This one compiles the
        # kernels.
        self._step(static, steps)
        graph = torch.cuda.CUDAGraph()
        # A graph that the collector happens to destroy while another is captured would spoil the capture.
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._memory,
                stream=torch.cuda.current_stream(),
                capture_error_mode="thread_local",
            ):
                results = self._step(static, steps)
        finally:
            gc.enable()
        self._memory = graph.pool()
        self._captured[kind] = Captured(graph, static, results)
