"""What a call takes after a pause, on the host and on the GPU, by what both do meanwhile.

usage: python -m perf.scoring.after_idle --out DIR [--rounds N]

Calls are scored in this process, one at a time, after pauses in which the host's thread sleeps, waits awake, or
waits awake and launches a small kernel each millisecond. So it shows whether a call is slow after a pause because
cores sleep, because the GPU does, or for neither reason. Weights are random, with Qwen3-0.6B's geometry. Without a
GPU a tiny model takes its place, as a rehearsal, and the GPU's time is the host's.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from hiscore.settings import Device
from perf.loadgen.load_plan import CPU, GPU
from perf.loadgen.scorer_calls import draw
from perf.machine.facts import machine_facts
from perf.models import checkpoints
from perf.script import arguments, write_json

PAUSES_MS = {"cuda": (0, 1, 3, 10, 25, 50, 100), "cpu": (0, 3)}
ROUNDS = {"cuda": 30, "cpu": 3}
WARM_UP = 20
CALLS = 100
KERNEL_EVERY_S = 0.001
Wait = Callable[[float], None]


class GpuTime:
    """The GPU's time for one call after another, each from its first graph on."""

    def __init__(self) -> None:
        self._first: torch.cuda.Event | None = None
        self._last: torch.cuda.Event | None = None

    @contextmanager
    def of_graphs(self) -> Iterator[None]:
        """Note when the first graph of each call begins."""
        replay = torch.cuda.CUDAGraph.replay

        def noted(graph: torch.cuda.CUDAGraph) -> None:
            self._first = self._first or _now()
            replay(graph)

        with mock.patch.object(torch.cuda.CUDAGraph, "replay", noted):
            yield

    def launched(self) -> None:
        """All of a call has been launched."""
        self._last = _now()

    def take(self) -> float:
        """Seconds of that call; waits for its end."""
        assert self._first is not None, "a call launched no graph"
        assert self._last is not None
        self._last.synchronize()
        milliseconds: float = self._first.elapsed_time(self._last)
        self._first = self._last = None
        return 1e-3 * milliseconds


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def wait_awake(seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait without giving up the core, and do something each `KERNEL_EVERY_S`."""
    end = time.perf_counter() + seconds
    due = time.perf_counter() + KERNEL_EVERY_S
    while (now := time.perf_counter()) < end:
        if now >= due:
            meanwhile()
            due = now + KERNEL_EVERY_S


def waits(device: Device) -> dict[str, Wait]:
    """What is done in a pause, by name."""
    ways: dict[str, Wait] = {"asleep": time.sleep, "awake": wait_awake}
    if device == "cuda":
        number = torch.zeros(1, device="cuda")
        ways["awake, with kernels"] = lambda seconds: wait_awake(seconds, lambda: number.add_(1.0))
    return ways


def measure(
    scorer: Scorer, calls: Sequence[ScoreRequest], device: Device, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Median milliseconds of the host and of the GPU, by what a pause is filled with, and its length."""
    ways, pauses = waits(device), PAUSES_MS[device]
    spent: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    gpu = GpuTime()
    with gpu.of_graphs():
        for done in range(-WARM_UP, rounds * len(ways) * len(pauses)):
            # In turns, so that a drift of the machine is in all.
            way, pause = list(ways)[done % len(ways)], pauses[done // len(ways) % len(pauses)]
            ways[way](1e-3 * pause)
            begin = time.perf_counter()
            pending = scorer.submit([calls[done % len(calls)]])
            if device == "cuda":
                gpu.launched()
            pending.result()
            host = time.perf_counter() - begin
            on_gpu = gpu.take() if device == "cuda" else host
            if done >= 0:
                spent[way, pause].append((host, on_gpu))
    found: dict[str, dict[str, dict[str, float]]] = {way: {} for way in ways}
    for (way, pause), taken in spent.items():
        host, on_gpu = (1e3 * float(median) for median in np.median(taken, axis=0))
        found[way][str(pause)] = {"call_ms": host, "gpu_ms": on_gpu}
    return found


def main() -> int:
    """Load and measure; writes after_idle.json."""
    parser = arguments(__doc__, "after_idle.json")
    parser.add_argument("--rounds", type=int, help="calls after each pause")
    options = parser.parse_args()
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = GPU if device == "cuda" else CPU
    with tempfile.TemporaryDirectory() as directory:
        checkpoints.write(Path(directory), device, None)
        scorer = Scorer(Path(directory), device, query_cache_bytes=0)
    found = {}
    for shape in (plan.prompts[0], plan.request):
        drawn = draw(np.random.default_rng(0), shape, CALLS, plan.vocabulary, plan.labels)
        calls = [call.request() for call in drawn]
        found[str(shape)] = measure(scorer, calls, device, options.rounds or ROUNDS[device])
        for way, by_pause in found[str(shape)].items():
            taken = "  ".join(
                f"{pause} ms: {each['call_ms']:.2f} ({each['gpu_ms']:.2f})"
                for pause, each in by_pause.items()
            )
            print(f"{shape} {way:20s} {taken}", flush=True)
    gpu_name = torch.cuda.get_device_name() if device == "cuda" else None
    write_json(
        options.out / "after_idle.json", {"machine": machine_facts(options.commit, gpu_name), "shapes": found}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
