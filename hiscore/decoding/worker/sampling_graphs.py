"""Sample a step's tokens in CUDA graphs, one for each number of rows: what a sampled step launches beside its own.

A graph reads the logits where every step leaves them, and its parameters from a tensor that one copy fills.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Float64, Int32
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.worker.sampler import options_of
from hiscore.decoding.worker.step_runner import feed
from hiscore.decoding.worker.triton_penalties import count, penalise
from hiscore.graph_capture import GraphCapture, StaticOutputs

Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`sampler.sample`: of logits, temperature, top_k, top_p, uniforms and min_p."""


class Graph(Protocol):
    """What was captured."""

    def replay(self) -> None: ...


@dataclass(frozen=True)
class CapturedDraw:
    """A graph, its input (float64 [10, rows], see `padded_options`) and `StepOutputs.readback`."""

    graph: Graph
    options: Tensor
    readback: Tensor


class SamplingGraphs:
    """Samples rows with a temperature, top-k, top-p, min-p and penalties, or without; nothing else.

    Args:
        draw: The sampler.
        counts: int32 [max_sequences, vocabulary], see `TokenCounts`.
        input_ids: See `StepRunner`.
        cache: Its counters are read.
    """

    def __init__(self, draw: Draw, counts: Tensor, input_ids: Tensor, cache: KVCache) -> None:
        self._draw, self._counts, self._input_ids, self._cache = draw, counts, input_ids, cache
        self._captured: dict[int, CapturedDraw] = {}
        self._readback = StaticOutputs()

    def capture(self, capture: GraphCapture, logits: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Capture the graph for a number of rows, the largest first.

        Args:
            capture: The context.
            logits: float32 [rows, vocabulary], where steps leave them.
            stream: Where to capture.
        """
        options = torch.zeros((10, len(logits)), dtype=torch.float64, device=logits.device)
        options[:2] = -1  # padding alone: it feeds and counts nothing of a sequence
        self._readback.allocate(self._sample(logits, options))  # compiles the kernels

        def launch() -> Tensor:
            return self._readback.keep(self._sample(logits, options))[0]

        graph, readback = capture.capture(launch, stream, error_mode="thread_local")
        self._captured[len(logits)] = CapturedDraw(graph, options, readback)

    def sample(self, rows: int, seq_indices: Int32, sampling: SamplingBatch) -> Tensor:
        """Sample the tokens of the step that was launched last, and feed them to the next.

        Args:
            rows: Rows of the step's graph, padding included.
            seq_indices: int32 [R].
            sampling: How to sample each of the R rows.

        Returns:
            `StepOutputs.readback`.
        """
        captured = self._captured[rows]
        options = torch.from_numpy(padded_options(rows, seq_indices, sampling))
        if captured.options.is_cuda:
            options = options.pin_memory()
        captured.options.copy_(options, non_blocking=True)
        captured.graph.replay()
        return captured.readback

    def _sample(self, logits: Tensor, options: Tensor) -> Tensor:
        (fed, counted), (temperature, top_k, top_p, uniforms, min_p) = options[:2].int(), options[2:7]
        penalise(logits, self._counts, counted, *options[7:].float())
        ids = self._draw(logits, temperature.float(), top_k.int(), top_p.float(), uniforms, min_p.float())
        count(self._counts, counted, ids)
        places = fed.long()
        places = places.where(places >= 0, len(self._input_ids) - 1)
        return feed(ids, logits, places, self._input_ids, self._cache)


def padded_options(rows: int, seq_indices: Int32, sampling: SamplingBatch) -> Float64:
    """What a graph samples by: float64 [10, rows].

    Sequence indices, -1 for padding; the same of rows with penalties, -1 for others; `options_of` the rows; their
    repetition, presence and frequency penalties.
    """
    options = np.zeros((10, rows))
    options[:2] = -1
    options[0, : len(seq_indices)] = seq_indices
    options[2:7, : len(seq_indices)] = options_of(sampling)
    if (penalties := sampling.penalties) is not None:
        options[1, penalties.rows] = seq_indices[penalties.rows]
        options[7:, penalties.rows] = penalties.repetition, penalties.presence, penalties.frequency
    return options
