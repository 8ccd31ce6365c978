"""Capture of CUDA graphs that share one memory pool."""

import gc
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

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

    def __enter__(self) -> Self:
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
