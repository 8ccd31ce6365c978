"""`score` and `scorer` under perf_analyzer, with a published load: fresh calls, repeated queries, text and ids.

usage: python -m perf.scoring.score_load --out DIR [--tokenizer DIR] [--seconds 120] [--rate 70]
           [--kinds fresh,repeated,text]

Poisson arrivals of calls with 120 query tokens and 10 items of 180: fresh ids to `scorer`, ids with one query for
all calls, and fresh texts to `score`; then a closed loop of each. On a GPU the weights are random, with
Qwen3-0.6B's geometry, and --tokenizer names a directory with tokenizer.json; on a CPU a tiny model takes its
place, as a rehearsal whose numbers mean nothing. Exits with 1 if a window failed: wrong scores, a late generator,
too few calls, fresh calls that were served from the cache.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from perf.loadgen import load_plan
from perf.loadgen.analyzer_scoring import Scoring, by_ids, by_text
from perf.loadgen.attempts import Attempts
from perf.loadgen.generator import Sample, poisson
from perf.loadgen.perf_analyzer import Analyzer
from perf.loadgen.score_check import check_scores
from perf.loadgen.scorer_calls import draw
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.text_calls import draw_texts
from perf.loadgen.window import Meter, Point, Window, WrongScores
from perf.loadgen.window_validity import MIN_CALLS_FOR_P99
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.script import arguments, by_comma, write_json

TITLES = {"fresh": "fresh ids", "repeated": "one query for all", "text": "fresh text"}


@dataclass(frozen=True)
class Load:
    """Sizes of a load."""

    rate: float
    """Calls a second of a Poisson window."""
    seconds: dict[str, float]
    """Length of a Poisson window, by kind of calls."""
    in_flight: int
    calls: int
    """Calls of a closed loop."""
    pool: int
    """Distinct calls of a kind."""


# More distinct calls than the prefix cache has room for, so that a repeated call finds nothing in it.
GPU = Load(70, {"fresh": 120, "repeated": 20, "text": 40}, in_flight=32, calls=1_000, pool=1_200)
CPU = Load(15, {"fresh": 10, "repeated": 10, "text": 10}, in_flight=4, calls=120, pool=400)


class Windows(Attempts):
    """Windows against one server; one that fails is recorded, and the next still runs."""

    def __init__(self, chosen: load_plan.Plan, load: Load, analyzer: Analyzer, meter: Meter) -> None:
        super().__init__()
        self._plan, self._load, self._analyzer, self._meter = chosen, load, analyzer, meter
        self._rng = np.random.default_rng(0)

    def calls(self, kind: str) -> Scoring:
        """Draw new calls; those with one query are the same every time."""
        plan, pool = self._plan, self._load.pool
        if kind == "text":
            return by_text(draw_texts(self._rng, plan.request, pool), plan.labels)
        rng = np.random.default_rng(2) if kind == "repeated" else self._rng
        return by_ids(draw(rng, plan.request, pool, plan.vocabulary, plan.labels, kind == "repeated"))

    def warm_up(self, kind: str) -> None:
        """Let the first calls compile kernels and, where all have one query, fill the cache."""
        scoring = self.calls(kind)
        self._analyzer.closed_loop("", scoring.target, self._load.in_flight, 2 * self._load.in_flight)

    def open_loop(self, kind: str) -> Point:
        """Send calls as Poisson arrivals."""
        load, scoring = self._load, self.calls(kind)
        arrivals = poisson(self._rng, load.rate, load.seconds[kind])
        name = f"{TITLES[kind]}, Poisson {load.rate:g}/s"

        def run() -> list[Sample]:
            return scoring.samples(self._analyzer.open_loop(name, scoring.target, arrivals))

        asked = Window(
            "open", name, self._plan.request, self._pool(kind, name), offered=load.rate, fresh=kind != "repeated",
            min_calls=MIN_CALLS_FOR_P99,
        )  # fmt: skip
        return self._cached(kind, self._meter.window(asked, run))

    def closed_loop(self, kind: str) -> Point:
        """Keep a fixed number of calls in flight."""
        load, scoring = self._load, self.calls(kind)
        name = f"{TITLES[kind]}, {load.in_flight} in flight"

        def run() -> list[Sample]:
            return scoring.samples(
                self._analyzer.closed_loop(name, scoring.target, load.in_flight, load.calls)
            )

        asked = Window(
            "closed",
            name,
            self._plan.request,
            self._pool(kind, name),
            fresh=kind != "repeated",
            min_calls=MIN_CALLS_FOR_P99,
        )
        return self._cached(kind, self._meter.window(asked, run))

    def _pool(self, kind: str, name: str) -> str:
        return kind if kind == "repeated" else name

    def _cached(self, kind: str, point: Point) -> Point:
        if kind == "repeated" and point.cached_calls < 0.99 * point.calls:
            raise WrongScores("calls with the same query were not served from the cache")
        return point


def measure(windows: Windows, kinds: Sequence[str]) -> None:
    """For each kind of calls: warm up, then an open and a closed loop."""
    for kind in kinds:
        for work in (windows.warm_up, windows.open_loop, windows.closed_loop):
            windows.attempt(f"{TITLES[kind]}, {work.__name__}", partial(work, kind))


def main() -> int:
    """Serve and measure; writes score_load.json after every window."""
    options = parse()
    device, _ = choose_device("auto")
    chosen, load = (load_plan.CPU, CPU) if device == "cpu" else (load_plan.GPU, GPU)
    load = replace(load, rate=options.rate or load.rate)
    if options.seconds:
        load = replace(load, seconds=dict.fromkeys(load.seconds, options.seconds))
    limit_threads(device)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    results: dict[str, Any] = {"plan": {"request": asdict(chosen.request)}, "load": asdict(load)}
    results |= {"points": [], "failures": []}

    def write() -> None:
        results["seconds"] = time.perf_counter() - begin
        write_json(out / "score_load.json", results)

    def keep(point: Point) -> None:
        print(
            f"{point.name:32s} {point.rate:7.1f} calls/s, avg {point.avg:8.2f} ms, p50 {point.p50:8.2f}, "
            f"p99 {point.p99:8.2f}, {point.failed} failed, late {point.late_p99:.2f}",
            flush=True,
        )
        results["points"].append(asdict(point))
        write()

    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        checkpoints.write(Path(directory), device, options.tokenizer)
        settings = server_settings(
            model=directory,
            models="tokenizer,scorer,score",
            device=device,
            query_cache_bytes=chosen.query_cache_bytes,
        )
        with Server(settings, out / "server-score-load.log") as server:
            triton = triton_version(server.http_url)
            results["machine"] = machine_facts(options.commit, gpu.device, gpu.driver, triton)
            analyzer = Analyzer(server.grpc_url, out / "perf-analyzer-score.txt", out / "exports")
            windows = Windows(chosen, load, analyzer, Meter(server, gpu, chosen.tolerance, keep))
            rng = np.random.default_rng(1)
            some = draw(rng, chosen.request, 6, chosen.vocabulary, chosen.labels)
            windows.attempt(
                "check",
                lambda: results.update(check=asdict(check_scores(server.grpc_url, some, chosen.tolerance))),
            )
            measure(windows, options.kinds)
    results["failures"] = windows.failures
    write()
    return 1 if windows.failures else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "score_load.json")
    parser.add_argument("--tokenizer", type=Path, help="directory with tokenizer.json")
    parser.add_argument(
        "--kinds", type=by_comma, default=list(TITLES), help="kinds of calls, comma-separated"
    )
    parser.add_argument("--rate", type=float, help="calls a second")
    parser.add_argument("--seconds", type=float, help="length of each Poisson window")
    options = parser.parse_args()
    if unknown := set(options.kinds) - TITLES.keys():
        parser.error(f"no kind is called {', '.join(sorted(unknown))}; there are: {', '.join(TITLES)}")
    if not options.tokenizer and choose_device("auto")[0] == "cuda":
        parser.error("random weights have no tokenizer: --tokenizer DIR is missing")
    return options


if __name__ == "__main__":
    sys.exit(main())
