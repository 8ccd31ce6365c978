"""`StepRunner` for a CUDA device: one CUDA graph per number of rows and reach of their contexts.

Rows are padded up to the next captured number; padding belongs to no sequence and writes nothing. The reach only
sizes the grids of kernels: it changes no bit of a result.
"""

import logging
from dataclasses import dataclass

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
from hiscore.decoding.worker.cuda_queues import CudaQueues
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.sampling_graphs import SamplingGraphs
from hiscore.decoding.worker.step_runner import Attends, StepOutputs, decode_greedily, new_input_ids
from hiscore.decoding.worker.token_counts import TokenCounts
from hiscore.decoding.worker.triton_sampler import sample_rows
from hiscore.graph_capture import GraphCapture, StaticOutputs

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
REACHES = (2_048, 8_192, 16_384)


def buckets_up_to(most: int, sizes: tuple[int, ...], step: int) -> list[int]:
    """The sizes below `most`, further ones a `step` apart, and `most`."""
    more = range(sizes[-1] + step, most, step)
    return [size for size in (*sizes, *more) if size < most] + [most]


@dataclass(frozen=True)
class Bucket:
    """What a graph is captured for.

    Attributes:
        rows: Rows, padding included.
        reach: Tokens of the longest context.
        attends: What the sequences attend to.
    """

    rows: int
    reach: int
    attends: Attends


PaddedOutputs = tuple[Tensor, Tensor, Tensor]
"""`StepOutputs` with padding: logits; int32 [2, rows] slots, host's and buffers'; readback."""


@dataclass(frozen=True)
class CapturedStep:
    """A graph, its input (int32 [2, rows]: sequence indices and positions) and its outputs."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    outputs: PaddedOutputs


class GraphRunner:
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
        self.counts: TokenCounts | None = None
        with queues.use(Queue.COMPUTE):
            self._capture_all()

    def forward(self, seq_indices: Int32, positions: Int32, attends: Attends) -> StepOutputs:
        """See `StepRunner`."""
        count, longest = len(seq_indices), int(positions.max()) + 1
        bucket = Bucket(
            self._rows_for(count),
            next(reach for reach in self._reaches if reach >= longest),
            attends,
        )
        padded = torch.zeros((2, bucket.rows), dtype=torch.int32, pin_memory=True)
        values = padded.numpy()
        values[0] = -1
        values[:, :count] = seq_indices, positions
        logits, slots, readback = self._launch(bucket, padded)
        host_slots, buffer_slots = slots[:, :count]
        return StepOutputs(logits[:count], host_slots, buffer_slots, readback)

    def sample(self, seq_indices: Int32, sampling: SamplingBatch) -> Tensor:
        """See `StepRunner`."""
        return self._sampling.sample(self._rows_for(len(seq_indices)), seq_indices, sampling)

    def _rows_for(self, count: int) -> int:
        return next(rows for rows in self._rows if rows >= count)

    def _launch(self, bucket: Bucket, padded: Tensor) -> PaddedOutputs:
        """Run the bucket's graph over pinned int32 [2, rows]: sequence indices and positions."""
        captured = self._captured[bucket]
        captured.rows.copy_(padded, non_blocking=True)
        captured.graph.replay()
        logits, slots, readback = captured.outputs
        # The next step may be replayed before the OFFLOAD queue has read the slots.
        return logits, slots.clone(), readback

    def _make_ops(self, reach: int, attends: Attends) -> TritonCacheOps:
        mixed = attends is Attends.MIXED
        return TritonCacheOps(self._model.cache, self._attention, reach, mixed, self._value_dim)

    def _decode(self, rows: Tensor, ops: TritonCacheOps, attends: Attends) -> PaddedOutputs:
        full_attention = attends is Attends.FULL
        outputs = decode_greedily(
            self._model, StepBatch(rows[0], rows[1]), self.input_ids, ops, full_attention
        )
        slots = torch.stack((outputs.host_slots, outputs.buffer_slots))
        return outputs.logits, slots, outputs.readback

    def _buckets(self) -> list[Bucket]:
        """All buckets, the largest first: the others reuse their memory."""
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
            vocabulary = self._logits.first(1)[0].shape[1]
            self.counts = TokenCounts(len(self.input_ids) - 1, self._device, vocabulary)
            self._sampling = SamplingGraphs(sample_rows, self.counts.table, self.input_ids, self._model.cache)
            for rows in reversed(self._rows):
                self._sampling.capture(capture, self._logits.first(rows)[0], torch.cuda.current_stream())
        log.info(
            "captured %d CUDA graphs of steps and %d of their sampling, which hold %d MiB",
            len(self._captured),
            len(self._rows),
            capture.bytes >> 20,
        )

    def _capture(self, capture: GraphCapture, bucket: Bucket) -> CapturedStep:
        # Padding alone: the warm-up reads and writes nothing of a sequence.
        rows = torch.zeros((2, bucket.rows), dtype=torch.int32, device=self._device)
        rows[0] = -1
        ops = self._make_ops(bucket.reach, bucket.attends)
        logits, _, _ = self._decode(rows, ops, bucket.attends)  # compiles the kernels
        self._logits.allocate(logits)

        def launch() -> PaddedOutputs:
            logits, slots, readback = self._decode(rows, ops, bucket.attends)
            return self._logits.keep(logits)[0], slots, readback

        graph, outputs = capture.capture(launch, torch.cuda.current_stream(), error_mode="thread_local")
        return CapturedStep(graph, rows, outputs)
