"""Time one forward on the GPU, and the kernels that take the time.

usage: python -m perf.scoring.forward [--geometry NAME] [--dtype bfloat16|fp8] [--out DIR]  (one CUDA GPU)

Weights are random, with a real model's geometry.
"""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.machine.facts import process_facts
from perf.machine.kernel_times import kernel_times
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, write_json

LABELS = np.array([9454, 2753], np.int32)


def call(
    rng: np.random.Generator, query: int = 120, items: int = 10, item: int = 180, softmax: bool = True
) -> ScoreRequest:
    tokens = rng.integers(0, 151_936, query + items * item).astype(np.int32)
    options = ScoreOptions(apply_softmax=softmax)
    return ScoreRequest(MultiItemPrompt(tokens, query, np.full(items, item)), LABELS, options)


def gpu_ms(scorer: Scorer, batches: list[list[ScoreRequest]]) -> float:
    """Median GPU time of a batch, from its first kernel until its results are copied; tokens differ by batch."""
    times = []
    for calls in batches:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        # Queue a long kernel first, so that all launches are done before the timed work starts.
        torch.cuda._sleep(20_000_000)
        begin.record()
        pending = scorer.submit(calls)
        end.record()
        pending.result()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times))


def host_ms(scorer: Scorer, batches: list[list[ScoreRequest]]) -> tuple[float, float]:
    """Median milliseconds of a launch and of a whole batch alone, on the host's clock."""
    launches, totals = [], []
    for calls in batches:
        torch.cuda.synchronize()
        start = time.perf_counter()
        pending = scorer.submit(calls)
        launches.append(time.perf_counter() - start)
        pending.result()
        totals.append(time.perf_counter() - start)
    return 1e3 * statistics.median(launches), 1e3 * statistics.median(totals)


def main() -> None:
    """Measure; writes forward.json, with the geometry and the dtype in its name if they are not the default."""
    parser = arguments(__doc__, "forward.json", required=False)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-0.6b")
    parser.add_argument("--dtype", choices=("bfloat16", "fp8"), default="bfloat16")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    directory = Path(tempfile.mkdtemp())
    random_checkpoint.write_config(options.geometry, directory)
    start = time.perf_counter()
    with random_checkpoint.in_memory("cuda"):
        scorer = load_decoder_scorer(directory, "cuda", options.dtype, 16_384, query_cache_bytes=0)
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "dtype": options.dtype,
        "load_s": time.perf_counter() - start,
        "allocated_gib": torch.cuda.memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.memory_reserved() / 2**30,
    }
    shapes = {
        "1 prompt of 300": lambda: [call(rng, 300, 1, 0)],
        "1 x (120 + 10 x 180)": lambda: [call(rng)],
        "the same, no softmax": lambda: [call(rng, softmax=False)],
        "2 x (120 + 10 x 180)": lambda: [call(rng) for _ in range(2)],
        "4 x (120 + 10 x 180)": lambda: [call(rng) for _ in range(4)],
        "8 x (120 + 10 x 180)": lambda: [call(rng) for _ in range(8)],
        "1 x (2000 + 100 x 20)": lambda: [call(rng, 2000, 100, 20)],
        "1 x (100 + 100 x 5)": lambda: [call(rng, 100, 100, 5)],
        "1 x (50 + 400 x 2)": lambda: [call(rng, 50, 400, 2)],
    }
    for name, make in shapes.items():
        for _ in range(3):
            scorer.submit(make()).result()
        gpu = gpu_ms(scorer, [make() for _ in range(20)])
        launch, total = host_ms(scorer, [make() for _ in range(20)])
        results[name] = {"gpu_ms": gpu, "launch_ms": launch, "total_ms": total}
        print(f"{name:24s} GPU {gpu:7.3f} ms   launch {launch:6.3f}   alone {total:7.3f}", flush=True)
    for name in ("1 prompt of 300", "1 x (120 + 10 x 180)", "8 x (120 + 10 x 180)"):
        pending = partial(scorer.submit, shapes[name]())
        rows = kernel_times(lambda submit=pending: submit().result())  # type: ignore[misc]
        results[f"profile of {name}"] = rows
        print(f"{name}: {sum(row[1] for row in rows):.0f} us in kernels")
        for kernel, us, count in rows[:11]:
            print(f"{us:9.1f} us {count:4.0f}  {kernel}")
    if options.out:
        geometry = "" if options.geometry == "qwen3-0.6b" else f"-{options.geometry}"
        dtype = "" if options.dtype == "bfloat16" else f"-{options.dtype}"
        write_json(options.out / f"forward{geometry}{dtype}.json", results)


if __name__ == "__main__":
    main()
