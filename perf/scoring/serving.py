"""Load test of `scorer` through a real tritonserver over gRPC: latency, open loop, saturation, cache, text.

usage: python -m perf.scoring.serving --out DIR [--quick] [--geometry qwen3-8b] [--dtype fp8] [--tokenizer DIR]

On a GPU the checkpoint has the geometry of Qwen3-0.6B, or another's, and random weights; on a CPU a tiny model in
float32 takes its place, as a rehearsal of the whole run. Text is scored with the default geometry alone. It exits
with 1 if a step failed, for instance because of wrong scores.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console

from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore.settings import Device, Dtype
from hiscore_client import HiscoreError, ScoreClient
from perf.loadgen import load_plan
from perf.loadgen.attempts import Attempts, Result
from perf.loadgen.generator import Generator
from perf.loadgen.perf_analyzer import Analyzer
from perf.loadgen.scorer_calls import draw
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.window import Meter, Point
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.models.geometries import GEOMETRIES
from perf.scoring import serving_table
from perf.scoring.serving_steps import ServingSteps, cost_of_text
from perf.scoring.serving_table import saturation, verdicts
from perf.script import arguments, write_json

DEFAULT = "qwen3-0.6b"
console = Console(width=max(128, Console().width))


class Run(Attempts):
    """The steps of a run: one that fails is recorded, and the others still run while the server answers."""

    def __init__(self, server: Server, log: Path) -> None:
        super().__init__()
        self.server = server
        self._log = log
        self.points: list[Point] = []
        self._begin = time.perf_counter()
        self._alive = True

    def attempt(self, name: str, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`, or None if it failed or the server is gone."""
        if not self._alive:
            self.failures.append(f"{name}: not run, the server no longer answers")
            return None
        return super().attempt(name, work)

    def _show_failure(self, line: str, trace: str) -> None:
        console.print(line, highlight=False, markup=False)
        with self._log.open("a") as log:
            log.write(f"{line}\n{trace}\n")
        self._alive = self._answers()

    def keep(self, point: Point) -> None:
        """Keep the numbers of a window and print a line of progress."""
        self.points.append(point)
        seconds = time.perf_counter() - self._begin
        line = (
            f"{point.rate:7.1f} req/s  avg {point.avg:8.2f}  p50 {point.p50:8.2f}  p99 {point.p99:8.2f} ms  "
            f"CPU {point.cpu_s:6.1f} s  failed {point.failed}"
        )
        console.print(f"{seconds:6.1f} s  {point.name:38s} {line}", highlight=False)

    def _answers(self) -> bool:
        with ScoreClient(self.server.grpc_url) as client:
            try:
                client.score_ids([1, 2, 3], [[4]], [5, 6], timeout=5)
            except HiscoreError:
                return False
        return True


def measure(run: Run, chosen: load_plan.Plan, gpu: GpuSampler, out: Path, judged: bool) -> dict[str, Any]:
    """Run all steps against the server and evaluate their numbers; `judged`: by the project's targets."""
    url, step = run.server.grpc_url, run.attempt
    rng = np.random.default_rng(0)
    messages = [
        call.message() for call in draw(rng, chosen.request, chosen.pool, chosen.vocabulary, chosen.labels)
    ]
    meter = Meter(run.server, gpu, chosen.tolerance, run.keep)
    cost = None
    with Generator(url, messages) as generator:
        steps = ServingSteps(
            chosen, url, meter, Analyzer(url, out / "perf-analyzer.txt", out / "exports"), generator
        )
        check = step("check of the scores", steps.check)
        step("warm-up", steps.warm_up)
        for shape in (*chosen.prompts, chosen.request):
            step(f"alone {shape}", partial(steps.alone, shape))
        for rate in chosen.rates:
            step(f"Poisson {rate:g}/s", partial(steps.open_loop, rate))
        for rate in chosen.analyzer_rates:
            step(f"Poisson {rate:g}/s, perf_analyzer", partial(steps.analyzer_open_loop, rate))
        for concurrency in chosen.concurrencies:
            step(f"{concurrency} in flight", partial(steps.closed_loop, concurrency))
        if chosen.query_cache_bytes:
            step("same query", steps.repeated_query)
        if "score" in run.server.models and (by_text := step("text", steps.text)):
            cost = cost_of_text(by_text)
    return {
        "check": check and asdict(check),
        "points": [asdict(point) for point in run.points],
        "saturation": saturation(run.points),
        "cost_of_text": cost,
        "targets": verdicts(run.points, cost) if judged else [],
        "skipped": [f"{model}: {reason}" for model, reason in run.server.left_out.items()],
        "failures": run.failures,
    }


def main() -> int:
    """Write a checkpoint, serve it, measure; writes serving.json."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    device, reason = choose_device("auto")
    chosen = plan_of(options, device)
    console.print(
        f"on {device} ({reason}), request {chosen.request}, {chosen.pool} distinct calls", highlight=False
    )
    limit_threads(device)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        checkpoints.write(Path(directory), device, options.tokenizer, geometry=options.geometry)
        written = time.perf_counter()
        settings = server_settings(
            model=directory,
            device=device,
            dtype=options.dtype if device == "cuda" else "auto",
            models="" if options.geometry == DEFAULT else "scorer",
            query_cache_bytes=chosen.query_cache_bytes,
        )
        with Server(settings, options.out / "server.log") as server:
            ready = time.perf_counter()
            console.print(
                f"checkpoint {written - begin:.1f} s, server ready {ready - written:.1f} s", highlight=False
            )
            triton = triton_version(server.http_url)
            results = {
                "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
                "geometry": options.geometry if device == "cuda" else "tiny",
                "plan": asdict(chosen),
                "settings": settings.model_dump(mode="json", exclude={"model"}),
                "ready_s": ready - written,
            }
            run = Run(server, options.out / "failures.txt")
            judged = device == "cuda" and options.geometry == DEFAULT
            results |= measure(run, chosen, gpu, options.out, judged)
    results["seconds"] = time.perf_counter() - begin
    changed = [options.geometry] * (options.geometry != DEFAULT) + [options.dtype] * (options.dtype != "auto")
    write_json(options.out / f"{'-'.join(['serving', *changed])}.json", results)
    serving_table.show(console, run.points, results)
    return 1 if run.failures else 0


def plan_of(options: argparse.Namespace, device: Device) -> load_plan.Plan:
    """Choose what is sent, and for how long."""
    chosen = load_plan.GPU_QUICK if options.quick else load_plan.GPU
    if options.geometry != DEFAULT:
        chosen = load_plan.GPU_LARGE
    if device == "cpu":
        chosen = load_plan.CPU
    chosen = replace(chosen, rates=options.rates or chosen.rates, open_s=options.seconds or chosen.open_s)
    if options.query_cache_bytes is not None:
        chosen = replace(chosen, query_cache_bytes=options.query_cache_bytes)
    return chosen


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "serving.json and the logs")
    parser.add_argument("--quick", action="store_true", help="shorter windows, fewer of them")
    parser.add_argument("--geometry", choices=GEOMETRIES, default=DEFAULT, help="of the GPU's checkpoint")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="auto", help="the server's setting")
    parser.add_argument("--rates", type=rates, help="calls a second of the open loops, comma-separated")
    parser.add_argument("--seconds", type=float, help="length of an open-loop window")
    parser.add_argument("--query-cache-bytes", type=int, help="the server's setting; 0: no cache")
    parser.add_argument("--tokenizer", type=Path, help="directory with tokenizer.json, to score text as well")
    return parser.parse_args()


def rates(text: str) -> Sequence[float]:
    """Comma-separated numbers."""
    return tuple(float(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
