"""Processor time of the HTTP API per call of 10 items: of API processes that run already, in turns.

usage: python -m perf.scoring.api_cpu --out DIR NAME=PID@URL [NAME=PID@URL ...]

Two checkouts in front of the same models are compared by an API of each: API_BACKEND=host:8001 make serve. PID is
that of ``hiscore.api``, whose children count. Processor time, since other work moves the clock more.
"""

import statistics
import sys
from typing import Any

import numpy as np
import psutil

from perf.loadgen.api_calls import Call, Ids, over_http
from perf.loadgen.text_calls import WORDS
from perf.machine.facts import machine_facts
from perf.script import arguments, write_json

LABELS = [5, 6]


def make_calls() -> list[Call]:
    """Ten items by ids, by text, and as documents; about a token a word."""
    rng = np.random.default_rng(0)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    scored = {"label_token_ids": LABELS, "apply_softmax": True}
    ids = {
        "query": rng.integers(10, 10_000, 12).tolist(),
        "items": rng.integers(10, 10_000, (10, 3)).tolist(),
    }
    text = {"query": words(12), "items": [words(3) for _ in range(10)]}
    reranked = {"query": words(8), "documents": [words(20) for _ in range(10)]}
    none = Ids([], [], [])
    return [
        Call("10 items by ids", "/v1/score", {**ids, **scored}, none, 10),
        Call("10 items by text", "/v1/score", {**text, **scored}, none, 10),
        Call("rerank of 10 documents", "/v1/rerank", reranked, none, 10),
    ]


def cpu_seconds(process: psutil.Process) -> float:
    """Of a process and its children, so far."""
    return float(sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True))))


def main() -> int:
    """Measure; writes api_cpu.json."""
    parser = arguments(__doc__, "api_cpu.json")
    parser.add_argument("apis", nargs="+", metavar="NAME=PID@URL")
    parser.add_argument("--calls", type=int, default=40, help="in one turn")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each; the first warms up")
    options = parser.parse_args()
    apis = {name: place.split("@", 1) for name, place in (each.split("=", 1) for each in options.apis)}
    results: dict[str, Any] = {}
    for call in make_calls():
        once = {name: over_http(url, call) for name, (_, url) in apis.items()}
        took: dict[str, list[float]] = {name: [] for name in apis}
        for turn in range(options.rounds):
            for name, (pid, _) in apis.items():
                process = psutil.Process(int(pid))
                before = cpu_seconds(process)
                for _ in range(options.calls):
                    once[name]()
                if turn:
                    took[name].append(1e3 * (cpu_seconds(process) - before) / options.calls)
        results[call.name] = {
            name: {"median_ms": statistics.median(each), "turns_ms": each} for name, each in took.items()
        }
        shown = ", ".join(f"{name} {each['median_ms']:.2f} ms" for name, each in results[call.name].items())
        print(f"{call.name:24s} {shown}", flush=True)
    machine = machine_facts(options.commit)
    write_json(options.out / "api_cpu.json", {"cpu": results, "calls": options.calls, "machine": machine})
    return 0


if __name__ == "__main__":
    sys.exit(main())
