"""Capture of CUDA graphs that share one memory pool, and where they leave their outputs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """The stream in which a device's graphs are captured: one, since cuBLAS has a workspace of 32 MiB for each."""
    return torch.cuda.Stream(device)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: a graph that is destroyed while another is captured spoils it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GraphCapture:
    """A context for captures, without garbage collection; the largest comes first, so others reuse its memory."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        """Device memory that the graphs hold, known after the context."""
        self._device = device
        self._pool: Any = None
        self._reserved_before = 0
        self._paused = ExitStack()

    def __enter__(self) -> "GraphCapture":
        self._reserved_before = torch.cuda.memory_reserved(self._device)
        gc.collect()
        self._paused.enter_context(garbage_collection_paused())
        return self

    def __exit__(self, *_: object) -> None:
        self._paused.close()
        self.bytes = torch.cuda.memory_reserved(self._device) - self._reserved_before

    def capture(
        self, launch: Callable[[], T], stream: torch.cuda.Stream | None = None, error_mode: str = "global"
    ) -> tuple[torch.cuda.CUDAGraph, T]:
        """Capture what `launch` launches; call it once before, so that kernels are compiled.

        The tensors that it returns stay in place and hold the results of every replay. Without a `stream`, all
        captures share one.
        """
        graph = torch.cuda.CUDAGraph()
        stream = stream or capture_stream(torch.cuda.current_device())
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=error_mode):
            outputs = launch()
        self._pool = graph.pool()
        return graph, outputs


class StaticOutputs:
    """Buffers in which all graphs leave their outputs, as large as the largest graph needs."""

    def __init__(self) -> None:
        self._buffers: tuple[Tensor, ...] = ()

    def allocate(self, *outputs: Tensor, rows: int | None = None) -> None:
        """Make the buffers once, outside of captures, like the largest graph's outputs, or with `rows` rows."""
        if not self._buffers:
            self._buffers = tuple(
                output.new_empty((len(output) if rows is None else rows, *output.shape[1:]))
                for output in outputs
            )

    def rows(self, first: int, count: int) -> tuple[Tensor, ...]:
        """Rows of each buffer, as `keep` returns them."""
        return tuple(buffer[first : first + count] for buffer in self._buffers)

    def keep(self, *outputs: Tensor, first: int = 0) -> tuple[Tensor, ...]:
        """Copy outputs to the first buffers, from row `first` on, as a part of a graph.

        The returned rows hold until the next graph is replayed there.

        Raises:
            ValueError: They have more rows than the largest graph's.
        """
        return tuple(
            _kept(output, buffer[first:]) for output, buffer in zip(outputs, self._buffers, strict=False)
        )


def _kept(output: Tensor, buffer: Tensor) -> Tensor:
    if len(output) > len(buffer):
        raise ValueError(f"an output of {len(output)} rows, but the largest graph has {len(buffer)}")
    rows = buffer[: len(output)]
    return rows if rows.data_ptr() == output.data_ptr() else rows.copy_(output)
