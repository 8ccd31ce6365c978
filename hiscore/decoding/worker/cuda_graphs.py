"""`StepRunner` for a CUDA device: one CUDA graph for each number of rows and reach of their contexts.

Rows are padded up to the next captured number; a padding row belongs to no stream and writes nothing. The reach
only sizes the grids: it changes no bit of a result.
"""

import gc
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.decoding.worker.cuda_queues import CudaStreams
from hiscore.decoding.worker.device_queues import Lane
from hiscore.decoding.worker.interface import CacheConfig
from hiscore.decoding.worker.step_runner import Stepped, new_fed, step

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


Left = tuple[Tensor, Tensor, Tensor]
"""As `Stepped` has them, padding included: logits, written (int32 [2, rows], of home and buffer), and found."""


@dataclass(frozen=True)
class Captured:
    """A graph, where it reads its rows (int32 [2, rows]), and what it leaves behind."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    left: Left


class GraphRunner:
    """Captures at load all that may come up: a capture holds up every stream."""

    def __init__(
        self,
        model: DecodeModel,
        attention: AttentionShape,
        value_width: int | None,
        cache_config: CacheConfig,
        streams: CudaStreams,
        graphs: bool = True,
    ) -> None:
        self._model, self._attention, self._value_width = model, attention, value_width
        self._device = model.staging.device
        self.steps: CacheOps = self._steps(cache_config.context_length, full=False)
        self.fed = new_fed(cache_config.max_sequences, self._device)
        self._rows = up_to(ROWS, cache_config.max_sequences, 16)
        self._reaches = up_to(REACHES, cache_config.context_length, 2**30)
        self._use_graphs = graphs
        self._captured: dict[Kind, Captured] = {}
        self._memory: Any = None
        self._logits: Tensor | None = None  # of all graphs: float32 [most rows, vocabulary]
        if graphs:
            with torch.cuda.stream(streams[Lane.FORWARD]):
                self._capture_all()

    def run(self, seq_indices: Int32, positions: Int32, full: bool) -> Stepped:
        """See `StepRunner`."""
        count, longest = len(seq_indices), int(positions.max()) + 1
        kind = Kind(
            next(rows for rows in self._rows if rows >= count),
            next(reach for reach in self._reaches if reach >= longest),
            full and bool(self._model.cache.sparse),
        )
        padded = torch.zeros((2, kind.rows), dtype=torch.int32, pin_memory=True)
        values = padded.numpy()
        values[0] = -1
        values[:, :count] = seq_indices, positions
        if not self._use_graphs:
            rows = padded.to(self._device, non_blocking=True)
            logits, written, found = self._step(rows, self._steps(kind.reach, full))
        else:
            captured = self._captured[kind]
            captured.rows.copy_(padded, non_blocking=True)
            captured.graph.replay()
            logits, written, found = captured.left
            # The next step may be replayed before this has been read in the other lane.
            written = written.clone()
        home, buffer = written[:, :count]
        return Stepped(logits[:count], home, buffer, found)

    def _steps(self, reach: int, full: bool) -> TritonCacheOps:
        return TritonCacheOps(self._model.cache, self._attention, reach, full, self._value_width)

    def _step(self, rows: Tensor, steps: TritonCacheOps) -> Left:
        stepped = step(self._model, StepBatch(rows[0], rows[1]), self.fed, steps)
        return stepped.logits, torch.stack((stepped.home, stepped.buffer)), stepped.found

    def _kinds(self) -> list[Kind]:
        """All there are, the largest first: the others reuse their memory."""
        some = (True, False) if self._model.cache.sparse else (False,)
        return [
            Kind(rows, reach, full)
            for reach in reversed(self._reaches)
            for rows in reversed(self._rows)
            for full in some
        ]

    @torch.inference_mode()
    def _capture_all(self) -> None:
        before = torch.cuda.memory_reserved(self._device)
        # A graph that the collector happens to destroy while another is captured would spoil the capture.
        gc.collect()
        gc.disable()
        try:
            for kind in self._kinds():
                self._capture(kind)
        finally:
            gc.enable()
        used = torch.cuda.memory_reserved(self._device) - before
        log.info("captured %d CUDA graphs of steps, which hold %d MiB", len(self._captured), used >> 20)

    def _capture(self, kind: Kind) -> None:
        # Padding alone: what warms up reads and writes nothing of a stream.
        rows = torch.zeros((2, kind.rows), dtype=torch.int32, device=self._device)
        rows[0] = -1
        steps = self._steps(kind.reach, kind.full)
        # Compiles the kernels.
        logits, _, _ = self._step(rows, steps)
        if self._logits is None:
            self._logits = torch.empty_like(logits)
        kept = self._logits[: kind.rows]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._memory,
            stream=torch.cuda.current_stream(),
            capture_error_mode="thread_local",
        ):
            logits, written, found = self._step(rows, steps)
            kept.copy_(logits)
        self._memory = graph.pool()
        self._captured[kind] = Captured(graph, rows, (kept, written, found))
