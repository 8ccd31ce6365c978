"""Memory of a server under many small calls, and whether it grows."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from hiscore.launcher import Server
from perf.loadgen.generator import Generator
from perf.loadgen.scorer_calls import Shape, draw

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
