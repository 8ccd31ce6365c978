"""Capture of CUDA graphs that share one memory pool, and where they leave their outputs."""

import gc
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class GraphCapture:
    """A context in which graphs are captured; capture the largest first, so that the others reuse its memory.

    Garbage collection pauses inside: a graph that is destroyed during the capture of another one spoils it.
    """

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        """Device memory that the graphs hold, known after the context."""
        self._device = device
        self._pool: Any = None
        self._reserved_before = 0

    def __enter__(self) -> "GraphCapture":
        self._reserved_before = torch.cuda.memory_reserved(self._device)
        gc.collect()
        gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.enable()
        self.bytes = torch.cuda.memory_reserved(self._device) - self._reserved_before

    def capture(
        self,
        launch: Callable[[], T],
        stream: torch.cuda.Stream | None = None,
        error_mode: str = "global",
    ) -> tuple[torch.cuda.CUDAGraph, T]:
        """Capture what `launch` launches; call it once before, so that kernels are compiled.

        Args:
            launch: Its tensors stay in place and hold the results of every replay.
            stream: Where to capture; None: a stream that captures share.
            error_mode: Whose calls may spoil the capture: see `torch.cuda.graph`.

        Returns:
            The graph and what `launch` returned.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=error_mode):
            outputs = launch()
        self._pool = graph.pool()
        return graph, outputs


class StaticOutputs:
    """Where all graphs leave their outputs: one buffer each, as large as the largest graph needs.

    A graph's own outputs would keep their memory for themselves, as many times as there are graphs.
    """

    def __init__(self) -> None:
        self._buffers: tuple[Tensor, ...] = ()

    def allocate(self, *outputs: Tensor) -> None:
        """Make the buffers, unless they exist: of the shapes of the largest graph's outputs, outside a capture."""
        if not self._buffers:
            self._buffers = tuple(torch.empty_like(output) for output in outputs)

    def first(self, rows: int) -> tuple[Tensor, ...]:
        """The first rows of each buffer, as `keep` returns them."""
        return tuple(buffer[:rows] for buffer in self._buffers)

    def keep(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Copy outputs to the buffers, as a part of a graph.

        Returns:
            The first rows of each buffer. The next graph that is replayed overwrites them.

        Raises:
            ValueError: They have more rows than the largest graph's.
        """
        for output, buffer in zip(outputs, self._buffers, strict=True):
            if len(output) > len(buffer):
                raise ValueError(f"an output of {len(output)} rows, but the largest graph has {len(buffer)}")
        return tuple(
            buffer[: len(output)].copy_(output) for output, buffer in zip(outputs, self._buffers, strict=True)
        )
