"""Run one step of the bench in its own process, log its output, show its progress, stop it if it hangs."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from perf.bench_steps import Step
from perf.machine.facts import ROOT, shown

POLL_S = 0.2
# Plans assume an idle machine. A step that takes this much longer is taken to hang.
TIMES_PLANNED, MORE_S = 4.0, 60.0
STOPPING_S = 30.0
TIMED_OUT = 124


@dataclass(frozen=True)
class Done:
    """A step that has run; `code` is its exit code, `TIMED_OUT` if it was stopped."""

    name: str
    command: str
    code: int
    seconds: float


def run(step: Step, out: Path, progress: Progress, limit_s: float | None = None) -> Done:
    """Run a step.

    Args:
        out: Directory of the results; its log goes to out/logs.
        limit_s: Seconds after which to stop it, if a hanging step would be stopped later.
    """
    command = [sys.executable, "-m", step.module, *step.arguments]
    task = progress.add_task(step.name, total=step.seconds, line="")
    say(progress, f"{step.name}: planned for {step.seconds:.0f} s")
    log = log_of(step.name, out)
    hangs_after = TIMES_PLANNED * step.seconds + MORE_S
    limit = hangs_after if limit_s is None else min(hangs_after, limit_s)
    begin = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            while (code := process.poll()) is None:
                time.sleep(POLL_S)
                passed = time.perf_counter() - begin
                progress.update(task, completed=min(passed, 0.97 * step.seconds), line=_last_line(log))
                if passed > limit:
                    _stop(process)
                    code = TIMED_OUT
                    file.write(f"stopped after {passed:.0f} s\n")
                    break
        except BaseException:
            _stop(process)
            raise
    seconds = time.perf_counter() - begin
    progress.update(task, completed=step.seconds, line="done" if code == 0 else f"[red]FAILED ({code})")
    say(progress, f"{step.name}: {'done' if code == 0 else f'FAILED ({code})'}, {seconds:.0f} s")
    return Done(step.name, shown(["python", *command[1:]]), code, seconds)


def say(progress: Progress, line: str) -> None:
    """Print a line where the output is a file; a terminal shows the bars instead."""
    if not progress.console.is_terminal:
        progress.console.print(line, highlight=False, markup=False)


def log_of(name: str, out: Path) -> Path:
    """The log of a step."""
    return out / "logs" / f"{name.replace(' ', '-')}.txt"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a step. The kernel signals its children (a tritonserver) when it is gone."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOPPING_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment() -> dict[str, str]:
    """The environment with the client on the path, which may not be installed."""
    paths = [str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return re.sub(r"[\[\]]", "", lines[-1])[:70] if lines else ""
