"""Measures one window of load: a row of numbers, and answers checked against earlier ones."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from hiscore.arrays import Float32
from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore.scoring.batched_scorer import DEFAULT_BATCH_TOKENS
from perf.loadgen.generator import Sample
from perf.loadgen.scorer_calls import Shape
from perf.loadgen.scorer_counters import counters
from perf.loadgen.window_validity import MIN_CALLS, check_count, check_open_loop
from perf.machine.gpu_sampler import GpuSampler

# The first calls of a closed loop meet an idle server; its rate is taken after this share of the window.
RAMP = 0.2


class WrongScores(Exception):
    """An answer differs from what the same call gave before."""


@dataclass(frozen=True)
class Window:
    """A load to be measured."""

    group: str
    name: str
    shape: Shape
    pool: str
    """Names the set of calls; answers to the same call are compared over all windows of the pool."""
    offered: float | None = None
    """Arrivals a second in open loop."""
    seconds: float | None = None
    """Length of a closed loop; its rate is taken after the ramp."""
    fresh: bool = True
    """A call that is served from the cache fails the window."""
    min_calls: int = MIN_CALLS
    """Calls that must be answered for the numbers to mean something."""


@dataclass
class Point:
    """Numbers of a window: times in milliseconds, latencies from the intended send time, rates per second."""

    group: str
    name: str
    shape: str
    offered: float | None
    calls: int
    failed: int
    errors: list[str]
    rate: float
    items_per_s: float
    avg: float
    p50: float
    p90: float
    p99: float
    worst: float
    from_sending_p99: float
    """p99 counted from the actual send time, which hides a late generator."""
    late_p99: float
    late_worst: float
    within_50_ms: float
    within_500_ms: float
    """Share of all calls, failed ones included, that were answered within this time."""
    cached_calls: int
    """Calls with tokens from the cache, by their own usage."""
    tokens_per_forward: float
    batch_fill: float
    calls_per_execution: float
    queue_ms: float
    """Mean wait in Triton's queue."""
    gpu_busy: float | None = None
    """NVML's share of time with a kernel running, 0 to 1; None without a GPU."""
    gpu_memory_gib: float | None = None
    """Peak memory in use on the device, by all processes; None without a GPU."""
    max_difference: float = 0.0
    """Largest difference of a score from the first answer to the same call."""
    cpu_s: float = 0.0
    """CPU time of the whole machine, load generator included."""


class Answers:
    """The first answer to every call, to compare later ones with."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], Float32] = {}

    def difference(self, pool: str, samples: Sequence[Sample], shape: Shape) -> float:
        """Largest difference of a score from the first answer to the same call; answers to new calls are kept.

        Raises:
            WrongScores: An answer has the wrong size or is not a softmax over the labels.
        """
        largest = 0.0
        for sample in samples:
            scores = sample.scores
            if scores is None:
                continue
            # 1e-5 is some hundred units in the last place of a float32 near 1.
            if len(scores) != shape.items or not np.allclose(scores.sum(axis=1), 1, rtol=0, atol=1e-5):
                raise WrongScores(f"call {sample.message} of '{pool}' was answered with {scores.tolist()}")
            first = self._first.setdefault((pool, sample.message), scores)
            largest = max(largest, float(np.abs(scores - first).max(initial=0)))
        return largest


class Meter:
    """Runs windows against a server and measures them. Meters of several servers may share `Answers`."""

    def __init__(
        self,
        server: Server,
        gpu: GpuSampler,
        tolerance: float,
        keep: Callable[[Point], None],
        answers: Answers | None = None,
    ) -> None:
        self._server, self._gpu = server, gpu
        self._tolerance, self._keep = tolerance, keep
        self._answers = answers or Answers()

    def window(self, window: Window, run: Callable[[], list[Sample]]) -> Point:
        """Run one window.

        Raises:
            WrongScores: An answer differs from an earlier one by more than the tolerance, or a call that should
                be fresh was served from the cache.
            UnsoundLoad: Too few calls were answered, or an open loop did not offer its load.
        """
        before, begin, cpu_before = counters(self._server), time.perf_counter(), cpu_seconds()
        samples = run()
        end, after, cpu_after = time.perf_counter(), counters(self._server), cpu_seconds()
        risen = {key: value - before.get(key, 0) for key, value in after.items()}
        settings = self._server.settings
        device, _ = choose_device(settings.device)
        budget = settings.max_batch_tokens or DEFAULT_BATCH_TOKENS[device]
        point = summarise(window, samples, risen, budget)
        point.gpu_busy = self._gpu.busy(begin + RAMP * (end - begin), end)
        point.cpu_s = cpu_after - cpu_before
        point.gpu_memory_gib = self._gpu.memory_gib(begin, end)
        point.max_difference = self._answers.difference(window.pool, samples, window.shape)
        self._keep(point)
        if point.max_difference > self._tolerance:
            raise WrongScores(
                f"'{point.name}': a score differs by {point.max_difference:.2g} from the same call's first answer"
            )
        if window.fresh and point.cached_calls:
            raise WrongScores(
                f"'{point.name}': {point.cached_calls} calls were served from the cache, meant to be fresh"
            )
        check_count(window.name, samples, window.min_calls)
        if window.offered:
            check_open_loop(window.name, samples, window.offered)
        return point


def cpu_seconds() -> float:
    """Seconds that all cores have spent on anything so far."""
    spent = psutil.cpu_times()
    return float(spent.user + spent.nice + spent.system)


def summarise(window: Window, samples: Sequence[Sample], risen: dict[str, float], max_tokens: int) -> Point:
    """The numbers of a window.

    Args:
        risen: By how much the `COUNTERS` rose.
        max_tokens: Token budget of a forward.

    Raises:
        RuntimeError: No call was answered.
    """
    answered = [sample for sample in samples if not sample.error]
    if not answered:
        reason = samples[0].error if samples else "none was sent"
        raise RuntimeError(f"'{window.name}': no call was answered: {reason}")
    intended, sent, done = (
        np.array([getattr(sample, field) for sample in answered]) for field in ("intended", "sent", "done")
    )
    latency, late = 1e3 * (done - intended), 1e3 * (sent - intended)
    first, last = float(intended.min()), float(done.max())
    if window.seconds:
        first, last = RAMP * window.seconds, window.seconds
    rate = float(((done >= first) & (done <= last)).sum()) / (last - first)

    def each(what: str, of: str) -> float:
        return risen.get(what, 0) / max(1.0, risen.get(of, 0))

    return Point(
        group=window.group,
        name=window.name,
        shape=str(window.shape),
        offered=window.offered,
        calls=len(samples),
        failed=len(samples) - len(answered),
        errors=sorted({sample.error for sample in samples if sample.error})[:5],
        rate=rate,
        items_per_s=rate * window.shape.items,
        avg=float(latency.mean()),
        p50=float(np.percentile(latency, 50)),
        p90=float(np.percentile(latency, 90)),
        p99=float(np.percentile(latency, 99)),
        worst=float(latency.max()),
        from_sending_p99=float(np.percentile(latency - late, 99)),
        late_p99=float(np.percentile(late, 99)),
        late_worst=float(late.max()),
        within_50_ms=int((latency <= 50).sum()) / len(samples),
        within_500_ms=int((latency <= 500).sum()) / len(samples),
        cached_calls=sum(sample.cached > 0 for sample in answered),
        tokens_per_forward=each("tokens", "forwards"),
        batch_fill=each("tokens", "forwards") / max_tokens,
        calls_per_execution=each("calls", "executions"),
        queue_ms=each("queue_us", "calls") / 1e3,
    )
