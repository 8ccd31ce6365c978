"""The runner of CUDA on the CPU: kernels in Triton's interpreter, and graphs that are computed when replayed."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hiscore.layers.ops import Ops
from hiscore.prefill import cuda_runner
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.scoring.scorer import Scorer
from tests.support.scoring import use_runner

Around = Callable[[], AbstractContextManager[Any]]


class Graph:
    """Computes what was captured, at each replay."""

    def __init__(self, launch: Callable[[], Any], around: Around) -> None:
        self._launch, self._around = launch, around

    def replay(self) -> None:
        with self._around():
            self._launch()


class Capture:
    bytes = 0

    def __init__(self, around: Around) -> None:
        self._around = around

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def capture(
        self, launch: Callable[[], Any], stream: Any = None, error_mode: str = "global"
    ) -> tuple[Graph, Any]:
        return Graph(launch, self._around), launch()


def use_cuda_runner(
    scorer: Scorer,
    monkeypatch: pytest.MonkeyPatch,
    max_rows: int,
    around: Around = nullcontext,
    in_slices: bool = False,
) -> CudaRunner:
    """Let a scorer of the CPU launch its forwards as on CUDA.

    Args:
        scorer: Its pool is replaced by one of the same size.
        monkeypatch: Undone at the end of the test.
        max_rows: Of a forward.
        around: A context for what a GPU would compute without the host.
        in_slices: See `make_runner`.
    """
    launch_on_cpu(monkeypatch, around)
    runner = scorer.runner
    states = runner._pools.states
    slots = 0 if states is None else states.states.shape[1]
    sizes = runner.pool.shape[1], max_rows
    use_runner(scorer, CudaRunner(runner._decoder, *sizes, in_slices=in_slices, states=slots))
    return scorer.runner


def launch_on_cpu(monkeypatch: pytest.MonkeyPatch, around: Around = nullcontext) -> None:
    """Let `CudaRunner` compute on the CPU. For the arguments see `use_cuda_runner`."""
    monkeypatch.setattr(cuda_runner, "GraphCapture", lambda device: Capture(around))
    monkeypatch.setattr(cuda_runner, "TritonOps", Ops)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    properties = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
