"""`StepRunner` for a CUDA device: one CUDA graph per number of rows and reach of their contexts.

Rows are padded up to the next captured number; padding belongs to no sequence and writes nothing. The reach only
sizes the grids of kernels: it changes no bit of a result. A graph also draws the step's tokens: what a row is
sampled by comes to the device with its position.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.attention.base import AttentionShape
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.decoding.worker.device_queues import CudaQueues, Queue
from hiscore.decoding.worker.sampling_options import OPTIONS, fill_options
from hiscore.decoding.worker.step_runner import COUNTERS, Attends, StepOutputs, StepRunner, new_input_ids
from hiscore.decoding.worker.token_counts import TokenCounts
from hiscore.decoding.worker.triton_sampler import Feeding, draw
from hiscore.device.graphs import GraphCapture, StaticOutputs

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
REACHES = (2_048, 8_192, 16_384)


def buckets_up_to(most: int, sizes: tuple[int, ...], step: int) -> list[int]:
    """List the sizes below `most`, further ones a `step` apart, and `most`."""
    more = range(sizes[-1] + step, most, step)
    return [size for size in (*sizes, *more) if size < most] + [most]


@dataclass(frozen=True)
class Bucket:
    """Kind of step that a graph is captured for: rows, padding included, and tokens of the longest context."""

    rows: int
    reach: int
    attends: Attends


PaddedOutputs = tuple[Tensor, Tensor, Tensor]
"""`StepOutputs` with padding: logits; int32 [2, rows] slots, host's and buffers'; readback."""


@dataclass(frozen=True)
class CapturedStep:
    """A graph, its input (float64 [OPTIONS + 1, rows], see `GraphRunner.forward`) and its outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    outputs: PaddedOutputs


class GraphRunner(StepRunner):
    """Captures all graphs when it is made: a capture while serving would hold up every sequence."""

    def __init__(
        self,
        model: DecodeModel,
        attention: AttentionShape,
        value_dim: int | None,
        cache_config: CacheConfig,
        queues: CudaQueues,
    ) -> None:
        self._model, self._attention, self._value_dim = model, attention, value_dim
        self._device = model.staging.device
        self.ops: CacheOps = self._make_ops(cache_config.context_length, Attends.SELECTED)
        self.input_ids = new_input_ids(cache_config.max_sequences, self._device)
        self._rows = buckets_up_to(cache_config.max_sequences, ROWS, 16)
        self._reaches = buckets_up_to(cache_config.context_length, REACHES, 2**30)
        self._captured: dict[Bucket, CapturedStep] = {}
        self._logits = StaticOutputs()
        self._readback = torch.empty(COUNTERS + self._rows[-1], dtype=torch.int64, device=self._device)
        self.counts: TokenCounts | None = None
        with queues.use(Queue.COMPUTE):
            self._capture_all()

    def forward(
        self, seq_indices: Int32, positions: Int32, attends: Attends, sampling: SamplingBatch | None = None
    ) -> StepOutputs:
        """Launch a step; one copy takes options, sequence indices and positions to the device."""
        count, longest = len(seq_indices), int(positions.max()) + 1
        drawn = sampling is None or sampling.fits_graph
        bucket = Bucket(
            next(rows for rows in self._rows if rows >= count),
            next(reach for reach in self._reaches if reach >= longest),
            attends,
        )
        inputs = torch.zeros((OPTIONS + 1, bucket.rows), dtype=torch.float64, pin_memory=True)
        values = inputs.numpy()
        fill_options(values[:OPTIONS], seq_indices, sampling if drawn else None)
        fed = values[OPTIONS].view(np.int32).reshape(2, bucket.rows)
        fed[0, count:] = -1
        fed[:, :count] = seq_indices, positions
        logits, slots, readback = self._launch(bucket, inputs)
        host_slots, buffer_slots = slots[:, :count]
        return StepOutputs(logits[:count], host_slots, buffer_slots, readback, drawn)

    def _launch(self, bucket: Bucket, inputs: Tensor) -> PaddedOutputs:
        captured = self._captured[bucket]
        captured.inputs.copy_(inputs, non_blocking=True)
        captured.graph.replay()
        logits, slots, readback = captured.outputs
        # The next step may be replayed before the OFFLOAD queue has read the slots.
        return logits, slots.clone(), readback

    def _make_ops(self, reach: int, attends: Attends) -> TritonCacheOps:
        mixed = attends is Attends.MIXED
        return TritonCacheOps(self._model.cache, self._attention, reach, mixed, self._value_dim)

    def _decode(self, inputs: Tensor, ops: TritonCacheOps, attends: Attends) -> PaddedOutputs:
        seq_indices, positions = inputs[OPTIONS].view(torch.int32).view(2, -1)
        batch = StepBatch(seq_indices, positions)
        ids = torch.index_select(self.input_ids, 0, batch.table_rows)
        logits, *slots = self._model.decode(ids, batch, ops, attends is Attends.FULL)
        if self.counts is None:
            vocabulary = logits.shape[1]
            self._logits.allocate(logits.new_empty((self._rows[-1], vocabulary)))
            self.counts = TokenCounts(len(self.input_ids) - 1, self._device, vocabulary)
        (kept,) = self._logits.keep(logits)
        readback = self._readback[: COUNTERS + len(logits)]
        draw(kept, inputs[:OPTIONS], Feeding(readback, self.input_ids, self.counts.table, self._model.cache))
        return kept, torch.stack(slots), readback

    def _buckets(self) -> list[Bucket]:
        """List all buckets, the largest first: the others reuse their memory."""
        kinds = tuple(Attends) if self._model.cache.sparse else (Attends.FULL,)
        return [
            Bucket(rows, reach, attends)
            for reach in reversed(self._reaches)
            for rows in reversed(self._rows)
            for attends in kinds
        ]

    @torch.inference_mode()
    def _capture_all(self) -> None:
        with GraphCapture(self._device) as capture:
            for bucket in self._buckets():
                self._captured[bucket] = self._capture(capture, bucket)
        log.info(
            "captured %d CUDA graphs of steps, which hold %d MiB", len(self._captured), capture.bytes >> 20
        )

    def _capture(self, capture: GraphCapture, bucket: Bucket) -> CapturedStep:
        # Padding alone: the warm-up reads and writes nothing of a sequence.
        inputs = torch.zeros((OPTIONS + 1, bucket.rows), dtype=torch.float64, device=self._device)
        inputs[:2] = -1
        inputs[OPTIONS].view(torch.int32)[: bucket.rows] = -1
        ops = self._make_ops(bucket.reach, bucket.attends)
        self._decode(inputs, ops, bucket.attends)  # compiles the kernels

        def launch() -> PaddedOutputs:
            return self._decode(inputs, ops, bucket.attends)

        graph, outputs = capture.capture(launch, torch.cuda.current_stream(), error_mode="thread_local")
        return CapturedStep(graph, inputs, outputs)
