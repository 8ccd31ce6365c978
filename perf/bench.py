"""Run all measurements that this machine can make, one after another, and report them.

usage: python -m perf.bench [--full [--rehearse]] [--out DIR] [--only WORD,WORD] [--minutes N] [--resume]
           [--checkpoint DIR] [--tokenizer DIR] [--reviews FILE]

Without --full it runs what a laptop's CPU can measure in some minutes (`make bench`); with it, everything, which
needs a CUDA GPU (`make bench-gpu`), the most informative steps first. A step that fails or hangs does not stop the
others and is named in the report. --minutes limits the run: a step that would not fit is skipped. --resume skips
steps that have already succeeded in DIR. --rehearse runs the steps of --full on a CPU, with small sizes. On a host
without a network, --checkpoint, --tokenizer and --reviews name what is otherwise downloaded.

DIR gets the raw results, `bench.json` (rewritten after every step), `logs/` and `report.md`. Exits with 1 if a
step failed or was skipped.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hiscore.checkpoint import resolve
from perf import bench_steps, report
from perf.bench_process import Done, log_of, run
from perf.bench_steps import GPU_ONLY, Given, Step, missing
from perf.machine.facts import machine_facts
from perf.machine.gpu_sampler import GpuSampler, visible_gpus
from perf.script import arguments, by_comma, write_json

RESULTS = Path(__file__).parent / "results"
TAIL_LINES = 15
INTERRUPTED = 130


class Record:
    """bench.json: the steps run so far, written after every step. Steps of an earlier run into DIR stay in it."""

    def __init__(self, out: Path, facts: dict[str, object]) -> None:
        self._file, self._begin = out / "bench.json", time.perf_counter()
        earlier = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._steps: dict[str, dict[str, Any]] = {step["name"]: step for step in earlier.get("steps", [])}
        self._facts = facts
        self.done: list[Done] = []
        self.not_run: list[str] = []

    def succeeded(self, name: str) -> bool:
        """Tell if this step has succeeded, in this run or an earlier one."""
        return name in self._steps and self._steps[name]["code"] == 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def add(self, step: Done) -> None:
        self.done.append(step)
        self._steps[step.name] = asdict(step)
        self.write()

    def leave_out(self, step: Step, reason: str) -> None:
        """Record a step that is not run."""
        self.not_run.append(f"{step.name}: {reason}")
        self.write()

    def write(self) -> None:
        record = {
            "machine": self._facts,
            "steps": list(self._steps.values()),
            "not_run": self.not_run,
            "seconds": self.seconds,
        }
        write_json(self._file, record)


def directory_for(device: str) -> Path:
    """A new directory next to the recorded results, named after the machine and the day."""
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", device.lower())).strip("-")
    first = RESULTS / f"{name}-{date.today().isoformat()}"
    others = (first.with_name(f"{first.name}-{number}") for number in range(2, 1_000))
    return next(path for path in (first, *others) if not path.exists())


def selected(steps: Sequence[Step], only: str | None) -> list[Step]:
    """The steps that --only names, all of them without it.

    Raises:
        ValueError: No step has such a name.
    """
    if only is None:
        return list(steps)
    words = by_comma(only)
    if unknown := set(words) - {step.measurement for step in steps}:
        raise ValueError(f"no step is called {', '.join(sorted(unknown))}")
    return [step for step in steps if step.measurement in words]


def run_all(
    steps: Sequence[Step], given: Given, record: Record, progress: Progress, minutes: float | None
) -> None:
    """Run each step that can run and fits the time left; an interrupt ends the run."""
    for step in steps:
        left = None if minutes is None else 60 * minutes - record.seconds
        if reason := missing(step, given):
            record.leave_out(step, reason)
        elif left is not None and left < step.seconds:
            record.leave_out(step, f"it needs {step.seconds:.0f} s, {max(0, left):.0f} were left")
        else:
            begin = time.perf_counter()
            try:
                record.add(run(step, given.out, progress, left))
            except KeyboardInterrupt:
                record.add(Done(step.name, step.module, INTERRUPTED, time.perf_counter() - begin))
                return


def main() -> int:
    """Run the steps, write the report."""
    options = parse()
    console = Console()
    gpu = GpuSampler()
    on_gpu = options.full and not options.rehearse
    if on_gpu and gpu.device is None:
        console.print(
            "--full needs a CUDA GPU, and there is none; without it the CPU is measured", style="red"
        )
        return 2
    facts = machine_facts(options.commit, gpu.device if on_gpu else None, gpu.driver)
    out = (options.out or directory_for(str(facts["gpu"] or facts["cpu"]))).resolve()
    for directory in ("logs", "reviews"):
        (out / directory).mkdir(parents=True, exist_ok=True)
    given = inputs(options, out, console)
    steps = (
        bench_steps.gpu_steps(given, len(visible_gpus())) if options.full else bench_steps.cpu_steps(given)
    )
    if not on_gpu:
        steps = [step for step in steps if step.measurement not in GPU_ONLY]
        # Hide a GPU that is there all the same.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        steps = selected(steps, options.only)
    except ValueError as error:
        console.print(str(error), style="red")
        return 2
    record = Record(out, facts)
    if options.resume:
        steps = [step for step in steps if not record.succeeded(step.name)]
    planned = sum(step.seconds for step in steps) / 60
    console.print(
        f"{len(steps)} steps, planned for {planned:.0f} min, into {out}", highlight=False, soft_wrap=True
    )
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:28s}"),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[line]}"),
    )
    with Progress(*columns, console=console) as progress:
        run_all(steps, given, record, progress, options.minutes)
    return conclude(record, out, console)


def inputs(options: argparse.Namespace, out: Path, console: Console) -> Given:
    """Collect the inputs that the options name; the default model is fetched where they name none."""
    checkpoint: Path | None = options.checkpoint
    if checkpoint is None and not options.tokenizer:
        console.print("fetching the default model, if it is not here yet ...", highlight=False)
        checkpoint = resolve()
    return Given(out, checkpoint, options.tokenizer or checkpoint, options.reviews)


def conclude(record: Record, out: Path, console: Console) -> int:
    """Print what failed, write the report, return the exit code."""
    failed = [step for step in record.done if step.code]
    for lost in failed:
        log = log_of(lost.name, out)
        tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
        console.print(f"\nFAILED {lost.name} ({lost.command}):", style="red", highlight=False, markup=False)
        console.print("\n".join(tail), highlight=False, markup=False)
    for line in record.not_run:
        console.print(f"not run: {line}", highlight=False, markup=False)
    record.write()
    file = report.write(out)
    summary = f"{record.seconds / 60:.1f} min, {len(failed)} of {len(record.done)} steps failed\n{file}"
    console.print(summary, soft_wrap=True, highlight=False)
    return 1 if failed or record.not_run else 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = arguments(__doc__, "the results (default: perf/results/MACHINE-DATE)", required=False)
    parser.add_argument("--full", action="store_true", help="everything, on a CUDA GPU")
    parser.add_argument("--rehearse", action="store_true", help="with --full: its steps on a CPU, in small")
    parser.add_argument("--only", help="measurements, comma-separated: serving,ablations")
    parser.add_argument("--minutes", type=float, help="skip steps that would not end by then")
    parser.add_argument("--resume", action="store_true", help="skip what has succeeded in DIR")
    parser.add_argument("--checkpoint", type=Path, help="a model with weights (default: the demo's)")
    parser.add_argument("--tokenizer", type=Path, help="config.json and a tokenizer, without weights")
    parser.add_argument("--reviews", type=Path, help="sample written by perf.quality.precision --prepare")
    return parser.parse_args()


if __name__ == "__main__":
    # A SIGTERM ends the running step as well and still leaves a report.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
