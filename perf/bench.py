"""All measurements that this machine can make, one after another, and the report of them.

usage: python -m perf.bench [--full] [--out DIR] [--only WORD,WORD]

Without --full it measures what a laptop's CPU measures in some minutes (`make bench`); with it, everything, which
needs a CUDA GPU (`make bench-gpu`). A step that fails does not stop the others, and stands in the report. In DIR:
the raw results, `logs/`, `report.html`, `plots/`. Exits with 1 if a step failed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hiscore.checkpoint import resolve
from perf import bench_steps, machine, report_html
from perf.bench_steps import Step
from perf.gpu import GpuSampler, visible_gpus

RESULTS = Path(__file__).parent / "results"
TAIL_LINES = 15
POLL_S = 0.2


@dataclass(frozen=True)
class Done:
    """A step that has run. code: its exit code."""

    name: str
    command: str
    code: int
    seconds: float


def run(step: Step, out: Path, progress: Progress) -> Done:
    """Run a step in a process of its own, what it prints in DIR/logs; a bar shows its planned time passing."""
    command = [sys.executable, "-m", f"perf.{step.module}", *step.arguments]
    task = progress.add_task(step.name, total=step.seconds, line="")
    log = log_of(step.name, out)
    begin = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=machine.ROOT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            while (code := process.poll()) is None:
                time.sleep(POLL_S)
                passed = time.perf_counter() - begin
                progress.update(task, completed=min(passed, 0.97 * step.seconds), line=_last_line(log))
        except BaseException:
            # The step's own children (a tritonserver) are told by the kernel when it is gone.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    seconds = time.perf_counter() - begin
    progress.update(task, completed=step.seconds, line="done" if code == 0 else f"[red]FAILED ({code})")
    if not progress.console.is_terminal:
        progress.console.print(
            f"{step.name}: {'done' if code == 0 else 'FAILED'}, {seconds:.0f} s", highlight=False
        )
    return Done(step.name, " ".join(["python", *command[1:]]), code, seconds)


def log_of(name: str, out: Path) -> Path:
    """Where a step's output goes."""
    return out / "logs" / f"{name.replace(' ', '-')}.txt"


def _environment() -> dict[str, str]:
    """With the client on the path, which may not be installed."""
    paths = [str(machine.ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return re.sub(r"[\[\]]", "", lines[-1])[:70] if lines else ""


def directory_for(device: str) -> Path:
    """A new directory beside the recorded results, named by machine and day."""
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)", "", device.lower())).strip("-")
    first = RESULTS / f"{name}-{date.today().isoformat()}"
    others = (first.with_name(f"{first.name}-{number}") for number in range(2, 1_000))
    return next(path for path in (first, *others) if not path.exists())


def chosen(steps: Sequence[Step], only: str | None) -> list[Step]:
    """Steps whose module is named, or all of them.

    Raises:
        ValueError: a name is no step's.
    """
    if only is None:
        return list(steps)
    words = only.split(",")
    if unknown := set(words) - {step.module for step in steps}:
        raise ValueError(f"no step is called {', '.join(sorted(unknown))}")
    return [step for step in steps if step.module in words]


def main() -> int:
    """Run the steps, then report."""
    options = parse()
    console = Console()
    gpu = GpuSampler()
    if options.full and gpu.device is None:
        console.print(
            "--full needs a CUDA GPU, and there is none; without it the CPU is measured", style="red"
        )
        return 2
    begin = time.perf_counter()
    facts = machine.facts(gpu.device if options.full else None, gpu.driver, None, options.commit)
    out = (options.out or directory_for(str(facts["gpu"] or facts["cpu"]))).resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / "reviews").mkdir(exist_ok=True)
    console.print("the default model is fetched, if it is not here yet ...", highlight=False)
    checkpoint = resolve()
    steps = (
        bench_steps.gpu(out, checkpoint, len(visible_gpus()))
        if options.full
        else bench_steps.cpu(out, checkpoint)
    )
    if not options.full:
        # Where there is a GPU all the same, the steps must not find it.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        steps = chosen(steps, options.only)
    except ValueError as error:
        console.print(str(error), style="red")
        return 2
    planned = sum(step.seconds for step in steps) / 60
    console.print(
        f"{len(steps)} steps, planned for {planned:.0f} min, into {out}", highlight=False, soft_wrap=True
    )
    done: list[Done] = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:28s}"),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[line]}"),
    )
    with Progress(*columns, console=console) as progress:
        for step in steps:
            done.append(run(step, out, progress))
    seconds = time.perf_counter() - begin
    record = {"machine": facts, "steps": [asdict(step) for step in done], "seconds": seconds}
    (out / "bench.json").write_text(json.dumps(record, indent=1))
    failed = [step for step in done if step.code]
    for lost in failed:
        tail = log_of(lost.name, out).read_text(errors="replace").splitlines()[-TAIL_LINES:]
        console.print(f"\nFAILED {lost.name} ({lost.command}):", style="red", highlight=False, markup=False)
        console.print("\n".join(tail), highlight=False, markup=False)
    file = report_html.write(out)
    summary = f"{seconds / 60:.1f} min, {len(failed)} of {len(done)} steps failed\n{file}"
    console.print(summary, soft_wrap=True, highlight=False)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="everything, on a CUDA GPU")
    parser.add_argument("--out", type=Path, help="default: perf/results/MACHINE-DATE")
    parser.add_argument("--only", help="modules, comma-separated: serving,peers")
    parser.add_argument("--commit", help="what to record where there is no git history")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
