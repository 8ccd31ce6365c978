"""What a call to the HTTP API takes without models: of the APIs of some checkouts, in turns.

usage: python -m perf.scoring.api_cpu --out DIR NAME=CHECKOUT [NAME=CHECKOUT ...] [--model DIR] [--after-ms MS]

Models with fixed answers stand behind it (`perf.loadgen.fixed_answers`), so this is the API alone. Each checkout
has its own .venv. Processor time is that of all of an API's threads. The time that a caller waits, over gRPC too,
shows what passes between threads and processes, but other work on the machine moves it more. Models that answer
at once find all caches warm: --after-ms leaves the time in which others use them.
"""

import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.checkpoint import resolve
from hiscore.launcher.ports import free_ports
from hiscore.settings import DEFAULT_MODEL
from perf.loadgen.api_calls import Call, Ids, Once, over_grpc, over_http, score_call
from perf.loadgen.text_calls import WORDS
from perf.machine.facts import machine_facts
from perf.script import arguments, write_json

LABELS = [5, 6]


def make_calls() -> list[Call]:
    """Ten items by ids, by text, and as documents, and ten questions; about a token a word."""
    rng = np.random.default_rng(0)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    scored = {"label_token_ids": LABELS, "apply_softmax": True}
    text = {"query": words(12), "items": [words(3) for _ in range(10)]}
    reranked = {"query": words(8), "documents": [words(20) for _ in range(10)]}
    asked = [{"type": "predicate", "instructions": words(20)} for _ in range(10)]
    none = Ids([], [], [])
    return [
        score_call(rng, 120, 10, 180, 10_000),
        Call("10 items by text", "/v1/score", {**text, **scored}, none, 10),
        Call("rerank of 10 documents", "/v1/rerank", reranked, none, 10),
        Call("10 questions", "/v1/decisions", {"input": words(100), "questions": asked}, none, 10),
    ]


@contextmanager
def fixed_models(after_ms: float) -> Iterator[str]:
    """The address of models with fixed answers after some milliseconds, in a process of their own."""
    command = [sys.executable, "-m", "perf.loadgen.fixed_answers", str(after_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def api_of(checkout: Path, backend: str, checkpoint: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of a checkout's API."""
    (port,) = free_ports("127.0.0.1", 1)
    own = {
        "CHECKPOINT": str(checkpoint),
        "BACKEND": backend,
        "LISTEN_PORT": str(port),
        "SERVED_MODELS": "tokenizer,scorer,score",
    }
    process = subprocess.Popen(
        [checkout / ".venv/bin/python", "-m", "hiscore.api"],
        cwd=checkout,
        env={**os.environ, **{f"HISCORE_{name}": value for name, value in own.items()}},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{url}/v1/models").close()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"the API of {checkout} ended with {process.returncode}") from None
                time.sleep(0.1)
        yield process.pid, url
    finally:
        process.terminate()
        process.wait()


def cpu_us(pid: int) -> float:
    """Microseconds that all threads of a process have had so far, to the nanosecond of the scheduler's count."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e3


def measure(once: dict[str, Once], pids: dict[str, int], calls: int, rounds: int) -> dict[str, Any]:
    """Median microseconds of calls, made in each way in turn, and of processor time where there is a process.

    Args:
        once: Makes one call, by the way's name.
        pids: The processes, by the names of their ways.
        calls: In each way, in one turn.
        rounds: Turns; the first warms up.
    """
    wall: dict[str, list[float]] = {name: [] for name in once}
    cpu: dict[str, list[float]] = {name: [] for name in pids}
    for turn in range(rounds):
        before = {name: cpu_us(pid) for name, pid in pids.items()}
        for count in range(calls):
            for name in sorted(once, reverse=count % 2 == 1):
                start = time.perf_counter()
                once[name]()
                if turn:
                    wall[name].append(1e6 * (time.perf_counter() - start))
        if turn:
            for name, pid in pids.items():
                cpu[name].append((cpu_us(pid) - before[name]) / calls)
    found: dict[str, Any] = {name: {"wall_us": statistics.median(each)} for name, each in wall.items()}
    for name, each in cpu.items():
        found[name] |= {"cpu_us": statistics.median(each), "least_cpu_us": min(each)}
    return found


def main() -> int:
    """Measure; writes api_cpu.json."""
    parser = arguments(__doc__, "api_cpu.json")
    parser.add_argument("checkouts", nargs="+", metavar="NAME=CHECKOUT")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose tokenizer and template the API has")
    parser.add_argument("--calls", type=int, default=50, help="in one turn")
    parser.add_argument("--rounds", type=int, default=21, help="turns; the first warms up")
    parser.add_argument("--after-ms", type=float, default=0.0, help="milliseconds until the models answer")
    options = parser.parse_args()
    checkpoint = resolve(options.model)
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        backend = stack.enter_context(fixed_models(options.after_ms))
        apis = {
            name: stack.enter_context(api_of(Path(path).resolve(), backend, checkpoint))
            for name, path in (each.split("=", 1) for each in options.checkouts)
        }
        for call in make_calls():
            once = {name: over_http(url, call) for name, (_, url) in apis.items()}
            if call.ids.items:
                once["gRPC"] = over_grpc(backend, call)
            pids = {name: pid for name, (pid, _) in apis.items()}
            results[call.name] = measured = measure(once, pids, options.calls, options.rounds)
            shown = ", ".join(
                f"{name} {each['wall_us']:.0f}" + (f" (CPU {each['cpu_us']:.0f})" if name in pids else "")
                for name, each in measured.items()
            )
            print(f"{call.name:24s} us: {shown}", flush=True)
    facts = {
        "after_ms": options.after_ms,
        "calls": options.calls,
        "rounds": options.rounds,
        "machine": machine_facts(options.commit),
    }
    write_json(options.out / "api_cpu.json", {"calls_us": results, **facts})
    return 0


if __name__ == "__main__":
    sys.exit(main())
