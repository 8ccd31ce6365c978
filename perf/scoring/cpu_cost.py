"""Costs on the host: tokenizer and packing per core, start-up time, and memory after many calls.

usage: python -m perf.scoring.cpu_cost --out DIR [--checkpoint DIR] [--calls N] [--seconds S]

Texts are the project's own documents, tokenized repeatedly by the checkpoint's tokenizer (default: the demo's
model), so the library's word cache is warm. Memory is that of a server with Qwen3-0.6B's geometry on a GPU and a
tiny model on a CPU, under small calls. Exits with 1 if memory grows.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from hiscore.checkpoint import resolve
from hiscore.errors import RequestError
from hiscore.launcher import Server
from hiscore.models.facts import read_facts
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.text.encode import RequestEncoder
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Device, Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from perf.loadgen.generator import Generator
from perf.loadgen.scorer_calls import Shape, draw
from perf.loadgen.served import limit_threads, server_settings
from perf.machine.facts import ROOT, machine_facts, triton_version
from perf.models import checkpoints
from perf.scoring.roofline import BUDGET
from perf.script import arguments, failed, write_json

SMALL = Shape(20, 3, 8)
IN_FLIGHT = 16
WINDOW_S = 2.0
MIB = 2**20
# Allocators keep what a burst needed, so memory may still rise over the first half of the calls. Over the second
# half, more than both counts as growth: a leak of 1 KiB per call makes 50 MiB in half of 100,000 calls.
GROWTH, GROWTH_MIB = 0.03, 8.0


def resident_mib(server: Server) -> float:
    """Memory of the server and its models' processes, shared pages counted once."""
    root = psutil.Process(server.pid)
    return (
        float(sum(process.memory_full_info().pss for process in (root, *root.children(recursive=True)))) / MIB
    )


def shm_mib(server: Server) -> float:
    """Size of the server's files in /dev/shm."""
    files = Path("/dev/shm").glob(f"{server.name}*")
    return sum(file.stat().st_blocks * 512 for file in files) / MIB


def watch(
    server: Server, vocabulary: int, labels: Sequence[int], calls: int, seconds: float
) -> list[dict[str, float]]:
    """Send calls and record memory, until `calls` calls are answered or `seconds` seconds are over.

    Raises:
        RuntimeError: A call failed.
    """
    messages = [call.message() for call in draw(np.random.default_rng(0), SMALL, 2_000, vocabulary, labels)]
    answered = 0
    results = []
    with Generator(server.grpc_url, messages) as generator:
        until = time.perf_counter() + seconds
        while answered < calls and time.perf_counter() < until:
            samples = generator.closed_loop(IN_FLIGHT, WINDOW_S)
            if failed := next((sample.error for sample in samples if sample.error), None):
                raise RuntimeError(f"a call failed: {failed}")
            answered += len(samples)
            results.append({"calls": answered, "rss_mib": resident_mib(server), "shm_mib": shm_mib(server)})
            print(
                f"{answered} calls, {results[-1]['rss_mib']:.0f} MiB, /dev/shm {results[-1]['shm_mib']:.1f} MiB",
                flush=True,
            )
    return results


def growth(memory: Sequence[dict[str, float]]) -> list[str]:
    """A line for each kind of memory that grew over the second half of the calls."""
    half = [sample for sample in memory if sample["calls"] >= memory[-1]["calls"] / 2]
    lines = []
    for name, what in (("rss_mib", "resident memory"), ("shm_mib", "/dev/shm")):
        # Compare means of thirds: single samples depend on when garbage was collected.
        third = max(1, len(half) // 3)
        first, last = (
            statistics.mean(sample[name] for sample in part) for part in (half[:third], half[-third:])
        )
        if last - first > max(GROWTH * first, GROWTH_MIB):
            lines.append(f"{what} grew from {first:.1f} to {last:.1f} MiB over the second half of the calls")
    return lines


TARGET = 2_000_000
TARGET_CORES = 16
ITEMS, ITEM_WORDS, QUERY_WORDS = 10, 130, 90
# Calls tokenized together: about as many as wait at a busy server.
BATCH = 8
REPEATS = 5


def texts() -> list[tuple[str, list[str]]]:
    """Cut queries and items from the project's documents."""
    files = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
    words = " ".join(file.read_text(encoding="utf-8") for file in files).split(" ")
    size = QUERY_WORDS + ITEMS * ITEM_WORDS
    calls = []
    for start in range(0, len(words) - size + 1, size):
        query, *items = np.split(
            np.array(words[start : start + size], object), range(QUERY_WORDS, size, ITEM_WORDS)
        )
        calls.append((" ".join(query), [" " + " ".join(item) for item in items]))
    return calls


def median_s(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Median time of some repetitions, by default in CPU time."""
    work()
    taken = []
    for _ in range(REPEATS):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return statistics.median(taken)


def tokenizing(checkpoint: Path, threads: int) -> float:
    """Tokens a second; of CPU time with one thread, of the clock with several.

    Runs in its own process, since the library reads its number of threads once.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_use_threads, initargs=(threads,)) as pool:
        return pool.submit(_tokenize, checkpoint, threads > 1).result()


def _use_threads(threads: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(threads)


def _tokenize(checkpoint: Path, by_clock: bool) -> float:
    tokenizer, facts = load_tokenizer(checkpoint), read_facts(checkpoint)
    labels = np.array([9, 7], np.int32)
    calls = [TextRequest(query, items, label_token_ids=labels) for query, items in texts()]
    tokens = 0

    def work() -> None:
        nonlocal tokens
        tokens = 0
        for at in range(0, len(calls), BATCH):
            encoder = RequestEncoder(tokenizer, Limits(), facts)
            batch = [encoder.plan(call) for call in calls[at : at + BATCH]]
            for call in encoder.encode(batch):
                if isinstance(call, RequestError):
                    raise call
                tokens += len(call.prompt.tokens)

    taken = median_s(work, time.perf_counter if by_clock else time.process_time)
    return tokens / taken


def packing(shape: Shape, calls: int) -> float:
    """Tokens packed per second of CPU time, for full batches of new calls."""
    rng = np.random.default_rng(0)
    requests = [
        MultiItemPrompt(
            rng.integers(0, 50_000, shape.tokens).astype(np.int32),
            shape.query,
            np.full(shape.items, shape.item),
        )
        for _ in range(calls)
    ]

    def work() -> None:
        for _ in range(20):
            pack(requests, BUDGET, QueryCache(4_096, 1_024, caching=False))

    return 20 * calls * shape.tokens / median_s(work)


def rows(
    tokenized: dict[str, float],
    packed: dict[str, float],
    ready_s: float,
    memory: Sequence[dict[str, float]],
) -> Any:
    """The rows of the report's table."""
    measured = [
        *((f"tokenizer, {name}", value, "tokens/s") for name, value in tokenized.items()),
        *((f"packing {name}, by core", value, "tokens/s") for name, value in packed.items()),
        ("from start to ready", ready_s, "s"),
        (f"resident memory after {memory[-1]['calls']:,} calls", memory[-1]["rss_mib"], "MiB"),
        ("the same after the first window", memory[0]["rss_mib"], "MiB"),
        ("/dev/shm at the end", memory[-1]["shm_mib"], "MiB"),
    ]  # fmt: skip
    return [{"what": what, "value": value, "unit": unit} for what, value, unit in measured]


def main() -> int:
    """Measure; writes cpu_cost.json."""
    options = parse()
    cores = len(os.sched_getaffinity(0))
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    checkpoint = options.checkpoint or resolve()
    per_core, together = tokenizing(checkpoint, 1), tokenizing(checkpoint, cores)
    packed = {
        str(shape): packing(shape, calls)
        for shape, calls in ((Shape(120, 10, 180), 8), (Shape(100, 100, 5), 20))
    }
    print(
        f"tokenizer {per_core:,.0f} tokens/s a core, {together:,.0f} on {cores}, packing {packed}", flush=True
    )
    limit_threads(device)
    vocabulary, labels = (151_936, (9454, 2753)) if device == "cuda" else (500, (9, 7))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints.write(Path(directory), device, None)
        settings = server_settings(model=directory, models="scorer", device=device)
        begin = time.perf_counter()
        with Server(settings, options.out / "server-cpu-cost.log") as server:
            ready_s = time.perf_counter() - begin
            triton = triton_version(server.http_url)
            memory = watch(server, vocabulary, labels, options.calls, options.seconds)
    grown = growth(memory)
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    said = [
        f"The tokenizer is to make {TARGET:,} tokens a second on {TARGET_CORES} cores, "
        f"{TARGET // TARGET_CORES:,} a core if all scale. Here it makes {per_core:,.0f} on one core, by CPU time, "
        f"and {together:,.0f} on all "
        f"{cores}, by the clock.",
        *map(failed, grown),
    ]
    tokenized = {"by core": per_core, f"on {cores} cores": together}
    results = {
        "machine": machine_facts(options.commit, gpu, tritonserver=triton),
        "said": said,
        "rows": rows(tokenized, packed, ready_s, memory),
        "memory": memory,
    }
    write_json(options.out / "cpu_cost.json", results)
    print("\n".join(said))
    return 1 if grown else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "cpu_cost.json")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--calls", type=int, default=5_000, help="calls over which memory is watched")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop watching memory after this many seconds"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
