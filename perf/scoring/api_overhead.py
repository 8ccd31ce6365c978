"""Measure what the HTTP API adds to a call: the same over gRPC, with the API's own prompts, in turns.

usage: python -m perf.scoring.api_overhead --out DIR [--tokenizer DIR | --model DIR] [--processes N] [--quick]

On a GPU it serves Qwen3-0.6B's geometry with random weights and the tokenizer of --tokenizer, a directory with
tokenizer.json. On a CPU it rehearses with the default model, few calls and short texts. The prefix cache is off.
--quick: a quarter of the calls, and no throughput.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.launcher.device_choice import choose_device
from hiscore.settings import DEFAULT_MODEL
from perf.loadgen.api_calls import WAYS, Call, calls_a_second, decision_call, rerank_call, score_call
from perf.loadgen.served import server_settings
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.script import arguments, write_json

CONTEXT = 8_192
TARGET_MS = 0.6
WARM_UP = 3


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run; words are of about a token each."""

    query: int
    item: int
    documents: int
    document: int
    state: int
    questions: tuple[int, ...]
    question: int
    calls: int
    """In each way, of the smallest call; larger ones get fewer."""
    callers: tuple[int, ...]
    """Callers in each process, for the throughput."""
    seconds: float


GPU = Sizes(120, 180, 100, 200, 1_000, (1, 10, 50, 400), 40, calls=600, callers=(8,) * 8, seconds=5)
CPU = Sizes(12, 3, 4, 8, 20, (1, 3), 6, calls=6, callers=(2,), seconds=3)


def make_calls(sizes: Sizes, checkpoint: Path) -> list[Call]:
    """Draw the calls, the smallest first."""
    rng = np.random.default_rng(0)
    return [
        score_call(rng, sizes.query, 10, sizes.item, 10_000),
        rerank_call(rng, sizes.documents, sizes.document, checkpoint),
        *(
            decision_call(rng, sizes.state, count, sizes.question, checkpoint, CONTEXT)
            for count in sizes.questions
        ),
    ]


def latencies(urls: dict[str, str], api: psutil.Process, call: Call, count: int) -> dict[str, Any]:
    """Milliseconds of both ways, one call at a time and in turns, and the API's processor time per call."""
    once = {way: make(urls[way], call) for way, make in WAYS.items()}
    for _ in range(WARM_UP):
        for each in once.values():
            each()
    took: dict[str, list[float]] = {way: [] for way in once}
    before = _cpu_seconds(api)
    for _ in range(count):
        for way, each in once.items():
            start = time.perf_counter()
            each()
            took[way].append(1e3 * (time.perf_counter() - start))
    cpu_ms = 1e3 * (_cpu_seconds(api) - before) / count
    shown = {
        way: {"p50_ms": statistics.median(all_), "p90_ms": quantile(all_, 0.9)} for way, all_ in took.items()
    }
    added = statistics.median(b - a for a, b in zip(took["grpc"], took["http"], strict=True))
    per_second = {way: 1e3 * call.units / shown[way]["p50_ms"] for way in shown}
    print(
        f"{call.name:28s} gRPC {shown['grpc']['p50_ms']:8.2f} ms, HTTP {shown['http']['p50_ms']:8.2f} ms at p50; "
        f"the API adds {added:6.2f} ms, its CPU {cpu_ms:6.2f} ms; {per_second['http']:9.0f} units/s over HTTP",
        flush=True,
    )
    return {
        "calls": count,
        **shown,
        "added_p50_ms": added,
        "api_cpu_ms": cpu_ms,
        "units_a_second": per_second,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _cpu_seconds(process: psutil.Process) -> float:
    return float(sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True))))


def measure(server: Server, processes: int, sizes: Sizes, log: Path, quick: bool) -> dict[str, Any]:
    """All calls one at a time, then the throughput of the first two."""
    calls = make_calls(sizes, server.checkpoint)
    settings = server_settings(model=str(server.checkpoint), api_port=0, api_processes=processes)
    with Api(settings, server.checkpoint, server.grpc_url, server.models, log) as api:
        urls = {"grpc": server.grpc_url, "http": api.url}
        process = psutil.Process(api.pid)
        one_at_a_time = {
            call.name: latencies(
                urls, process, call, max(5, min(sizes.calls, 10 * sizes.calls // call.units))
            )
            for call in calls
        }
        throughput = {
            call.name: {
                way: calls_a_second(way, urls[way], call, sizes.callers, sizes.seconds) for way in WAYS
            }
            for call in calls[: 0 if quick else 2]
        }
    for name, found in throughput.items():
        share = found["http"] / found["grpc"]
        print(
            f"{name:28s} gRPC {found['grpc']:8.1f} calls/s, HTTP {found['http']:8.1f}, x {share:.3f}",
            flush=True,
        )
    return {"one_at_a_time": one_at_a_time, "calls_a_second": throughput}


def main() -> int:
    """Serve and measure; writes api_overhead.json."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device, _ = choose_device("auto")
    sizes = CPU if device == "cpu" else GPU
    if options.quick:
        sizes = replace(sizes, calls=max(sizes.calls // 4, 2))
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        if options.model or device == "cpu":
            checkpoint = resolve(options.model or DEFAULT_MODEL)
        else:
            checkpoint = Path(directory)
            checkpoints.write(checkpoint, device, options.tokenizer)
        settings = server_settings(
            model=str(checkpoint), models="tokenizer,scorer,score", query_cache_bytes=0, max_context=CONTEXT
        )
        with Server(settings, options.out / "server.log") as server:
            triton = triton_version(server.http_url)
            results = measure(server, options.processes, sizes, options.out / "api.log", options.quick)
    results |= {
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
        "processes": options.processes,
        "sizes": asdict(sizes),
        "seconds": time.perf_counter() - begin,
    }
    write_json(options.out / "api_overhead.json", results)
    added = next(iter(results["one_at_a_time"].values()))["added_p50_ms"]
    print(f"the API adds {added:.2f} ms to a call of 10 items (target: {TARGET_MS} ms)")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "api_overhead.json and logs")
    parser.add_argument("--tokenizer", type=Path, help="a directory with tokenizer.json")
    parser.add_argument("--model", help="serve this checkpoint instead")
    parser.add_argument("--quick", action="store_true", help="a quarter of the calls, and no throughput")
    parser.add_argument("--processes", type=int, default=4, help="of the API")
    options = parser.parse_args()
    if not options.model and not options.tokenizer and choose_device("auto")[0] == "cuda":
        parser.error("random weights have no tokenizer: --tokenizer DIR or --model DIR is missing")
    return options


if __name__ == "__main__":
    sys.exit(main())
