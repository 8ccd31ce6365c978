"""`decode` through a real tritonserver under perf_analyzer: first tokens, tokens after them, concurrency.

usage: python -m perf.decoding.streaming --out DIR [--factor F] [--rings 32,1] [--selector quest]

First a serving benchmark as published for another engine: 30 prompts of 8,192 tokens, 1,500 to generate, five at a
time, all lengths times --factor, for each BACKUP_RING on its own server. Then, with the first one, shorter
prompts with rising concurrency and as Poisson arrivals. Weights are random, with Qwen3-0.6B's geometry.
Without a GPU a tiny model takes its place, as a rehearsal whose numbers mean nothing. A prompt must get the tokens
that it got first, alone. Exits with 1 if a window failed.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore.settings import Device, ServeSettings
from perf.loadgen.analyzer_decode import Prompts, Served, as_samples, summarise
from perf.loadgen.attempts import Attempts
from perf.loadgen.generator import poisson
from perf.loadgen.perf_analyzer import Analyzer, Exported
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.token_check import LEAD, FirstTokens
from perf.loadgen.window_validity import MIN_CALLS, check_count, check_open_loop
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.script import arguments, by_comma, write_json

GIB = 2**30


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt and tokens to generate."""

    prompt: int
    tokens: int

    def times(self, factor: float) -> "Lengths":
        return Lengths(max(1, round(factor * self.prompt)), max(2, round(factor * self.tokens)))


@dataclass(frozen=True)
class Plan:
    """The requests of a run."""

    vocabulary: int
    factor: float
    """Scales the lengths of `benchmark`."""
    shorter: Lengths
    """Lengths in the sweep and in the Poisson arrivals."""
    concurrencies: tuple[int, ...]
    poisson_shares: tuple[float, ...]
    """Arrival rates, as shares of the highest rate of the sweep."""
    poisson_s: float
    kv_bytes: int
    """Size of each pool."""
    benchmark: Lengths = Lengths(8_192, 1_500)
    count: int = 30
    at_once: int = 5


GPU = Plan(
    vocabulary=151_936,
    factor=1.0,
    shorter=Lengths(1_024, 128),
    concurrencies=(1, 4, 16, 32),
    poisson_shares=(0.5, 0.8),
    poisson_s=15,
    # Keys and values of 30,000 tokens take 3.2 GiB; pinning more would only take time.
    kv_bytes=8 * GIB,
)

CPU = Plan(
    vocabulary=500,
    factor=1 / 64,
    shorter=Lengths(48, 12),
    concurrencies=(1, 4),
    poisson_shares=(0.5,),
    poisson_s=5,
    kv_bytes=GIB // 16,
)


class Windows(Attempts):
    """Windows against one server; one that fails is recorded, and the next still runs."""

    def __init__(self, chosen: Plan, analyzer: Analyzer, gpu: GpuSampler) -> None:
        super().__init__()
        self._plan, self._analyzer, self._gpu = chosen, analyzer, gpu
        # Not shared between servers: the width of the ring decides which pages are always selected.
        self._first = FirstTokens()
        self._rng = np.random.default_rng(0)
        self.found: list[dict[str, Any]] = []

    def warm_up(self) -> None:
        """Let the first steps compile kernels, for both lengths."""
        plan = self._plan
        for lengths in (plan.shorter, plan.benchmark.times(plan.factor)):
            prompts = draw(self._rng, Lengths(lengths.prompt, LEAD), plan.at_once, plan.vocabulary)
            self._analyzer.closed_loop("", prompts.target, plan.at_once, plan.at_once)

    def benchmark(self, ring: int) -> None:
        """Send the published load, the same prompts for every ring; some of them alone first."""
        plan, lengths = self._plan, self._plan.benchmark.times(self._plan.factor)
        name = f"{lengths.prompt} in, {lengths.tokens} out, {plan.at_once} at once, ring of {ring}"
        prompts = draw(np.random.default_rng(1), lengths, plan.count, plan.vocabulary)
        some = Prompts(prompts.ids[: plan.at_once], LEAD)

        def run() -> Served:
            alone = some.read(self._analyzer.closed_loop("", some.target, 1, len(some.ids)))
            self._first.agreement("benchmark", alone, LEAD)
            return self._closed(f"benchmark, ring of {ring}", name, prompts, plan.at_once, plan.count)

        self.attempt(name, run)

    def sweep(self) -> None:
        """Send shorter prompts with rising concurrency, then as Poisson arrivals."""
        plan, lengths = self._plan, self._plan.shorter
        title = f"{lengths.prompt} in, {lengths.tokens} out"
        prompts = draw(self._rng, lengths, max(MIN_CALLS, 2 * max(plan.concurrencies)), plan.vocabulary)
        fastest = 0.0
        for concurrency in plan.concurrencies:
            count = max(MIN_CALLS, 2 * concurrency)
            name = f"{title}, {concurrency} at once"
            work = partial(self._closed, "sweep", name, prompts, concurrency, count)
            if served := self.attempt(name, work):
                fastest = max(fastest, served.requests_per_s)
        for rate in (share * fastest for share in plan.poisson_shares if fastest):
            name = f"{title}, Poisson {rate:.3g}/s"
            arrivals = poisson(self._rng, rate, plan.poisson_s)
            run = partial(self._analyzer.open_loop, name, prompts.target, arrivals)
            self.attempt(name, partial(self._window, "poisson", name, prompts, run, rate))

    def _closed(self, group: str, name: str, prompts: Prompts, concurrency: int, count: int) -> Served:
        run = partial(self._analyzer.closed_loop, name, prompts.target, concurrency, count)
        return self._window(group, name, prompts, run)

    def _window(
        self, group: str, name: str, prompts: Prompts, run: Callable[[], list[Exported]],
        offered: float | None = None,
    ) -> Served:  # fmt: skip
        begin = time.perf_counter()
        exported, end = run(), time.perf_counter()
        streams = prompts.read(exported)
        served = summarise(name, streams, len(prompts.ids[0]))
        pool = "benchmark" if group.startswith("benchmark") else "shorter"
        agreement = self._first.agreement(pool, streams, prompts.max_tokens)
        samples = as_samples(streams)
        check_count(name, samples, MIN_CALLS)
        if offered:
            check_open_loop(name, samples, offered)
        self.found.append(
            {
                "group": group,
                "offered": offered,
                "agreement": agreement,
                "gpu_busy": self._gpu.busy(begin, end),
                "gpu_memory_gib": self._gpu.memory_gib(begin, end),
                **asdict(served),
            }
        )
        print(
            f"{name:44s} first token p50 {served.ttft.p50:8.1f} ms, a token {served.tpot.mean:7.2f} ms, "
            f"between responses p99 {served.itl.p99:7.2f}, {served.output_tokens_per_s:8.1f} tokens/s",
            flush=True,
        )
        return served


def draw(rng: np.random.Generator, lengths: Lengths, count: int, vocabulary: int) -> Prompts:
    """Draw random prompts."""
    return Prompts(rng.integers(0, vocabulary, (count, lengths.prompt)).tolist(), lengths.tokens)


def settings_of(checkpoint: Path, device: Device, chosen: Plan, ring: int, selector: str) -> ServeSettings:
    """Settings of a server; a rehearsal's prompts are shorter than the default selection."""
    sizes = {} if device == "cuda" else {"sparse_top_k": 64, "device_buffer_size": 128}
    return server_settings(
        model=str(checkpoint),
        models="decode",
        device=device,
        selector=selector,
        backup_ring=ring,
        prefix_cache=False,
        max_streams=max(*chosen.concurrencies, chosen.at_once),
        host_kv_bytes=chosen.kv_bytes,
        device_kv_bytes=2 * chosen.kv_bytes,
        **sizes,
    )


def main() -> int:
    """Serve and measure; writes decode_serving.json after every server."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device, _ = choose_device("auto")
    chosen = CPU if device == "cpu" else GPU
    chosen = replace(chosen, factor=options.factor or chosen.factor)
    limit_threads(device)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    results: dict[str, Any] = {"plan": asdict(chosen), "ready_s": {}, "windows": [], "failures": []}
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        checkpoints.write(Path(directory), device, None)
        for index, ring in enumerate(options.rings):
            settings = settings_of(Path(directory), device, chosen, ring, options.selector)
            starting = time.perf_counter()
            with Server(settings, out / f"server-decode-ring-{ring}.log") as server:
                results["ready_s"][f"ring of {ring}"] = time.perf_counter() - starting
                analyzer = Analyzer(server.grpc_url, out / "perf-analyzer-decode.txt", out / "exports")
                windows = Windows(chosen, analyzer, gpu)
                windows.warm_up()
                windows.benchmark(ring)
                if not index:
                    windows.sweep()
                triton = triton_version(server.http_url)
            results["windows"] += windows.found
            results["failures"] += windows.failures
            results |= {
                "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
                "settings": settings.model_dump(mode="json", exclude={"model"}),
                "seconds": time.perf_counter() - begin,
            }
            write_json(out / "decode_serving.json", results)
    return 1 if results["failures"] else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "decode_serving.json")
    parser.add_argument("--factor", type=float, help="scales the lengths of the published benchmark")
    parser.add_argument(
        "--rings",
        type=lambda given: [int(width) for width in by_comma(given)],
        default=[32, 1],
        help="values of BACKUP_RING, comma-separated",
    )
    parser.add_argument("--selector", default="quest")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
