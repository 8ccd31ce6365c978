"""Processor time of the HTTP API per call, without models: of the APIs of some checkouts, in turns.

usage: python -m perf.scoring.api_cpu --out DIR NAME=CHECKOUT [NAME=CHECKOUT ...] [--model DIR]

Models with fixed answers stand behind it (`perf.loadgen.fixed_answers`), so this is the API alone. Each checkout
has its own .venv. Processor time of all of an API's threads, since other work moves the clock more.
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
from perf.loadgen.api_calls import Call, Ids, over_http
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
    ids = {
        "query": rng.integers(10, 10_000, 120).tolist(),
        "items": rng.integers(10, 10_000, (10, 180)).tolist(),
    }
    text = {"query": words(12), "items": [words(3) for _ in range(10)]}
    reranked = {"query": words(8), "documents": [words(20) for _ in range(10)]}
    asked = [{"type": "predicate", "instructions": words(20)} for _ in range(10)]
    none = Ids([], [], [])
    return [
        Call("120 + 10 x 180 by ids", "/v1/score", {**ids, **scored}, none, 10),
        Call("10 items by text", "/v1/score", {**text, **scored}, none, 10),
        Call("rerank of 10 documents", "/v1/rerank", reranked, none, 10),
        Call("10 questions", "/v1/decisions", {"input": words(100), "questions": asked}, none, 10),
    ]


@contextmanager
def fixed_models() -> Iterator[str]:
    """The address of models with fixed answers, in a process of their own."""
    command = [sys.executable, "-m", "perf.loadgen.fixed_answers"]
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


def main() -> int:
    """Measure; writes api_cpu.json."""
    parser = arguments(__doc__, "api_cpu.json")
    parser.add_argument("checkouts", nargs="+", metavar="NAME=CHECKOUT")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose tokenizer and template the API has")
    parser.add_argument("--calls", type=int, default=50, help="in one turn")
    parser.add_argument("--rounds", type=int, default=21, help="turns of each; the first warms up")
    options = parser.parse_args()
    checkpoint = resolve(options.model)
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        backend = stack.enter_context(fixed_models())
        apis = {
            name: stack.enter_context(api_of(Path(path).resolve(), backend, checkpoint))
            for name, path in (each.split("=", 1) for each in options.checkouts)
        }
        for call in make_calls():
            once = {name: over_http(url, call) for name, (_, url) in apis.items()}
            took: dict[str, list[float]] = {name: [] for name in apis}
            for turn in range(options.rounds):
                for name in sorted(apis, reverse=bool(turn % 2)):
                    before = cpu_us(apis[name][0])
                    for _ in range(options.calls):
                        once[name]()
                    if turn:
                        took[name].append((cpu_us(apis[name][0]) - before) / options.calls)
            results[call.name] = {
                name: {"median_us": statistics.median(each), "min_us": min(each)}
                for name, each in took.items()
            }
            shown = ", ".join(
                f"{name} {each['median_us']:.0f} us (least {each['min_us']:.0f})"
                for name, each in results[call.name].items()
            )
            print(f"{call.name:24s} {shown}", flush=True)
    facts = {"calls": options.calls, "rounds": options.rounds, "machine": machine_facts(options.commit)}
    write_json(options.out / "api_cpu.json", {"cpu": results, **facts})
    return 0


if __name__ == "__main__":
    sys.exit(main())
