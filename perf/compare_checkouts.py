"""Serves two checkouts of this repository in turn on one machine and compares their answers and speed.

usage: python -m perf.compare_checkouts --out DIR --checkpoint DIR --base DIR --head DIR [--rounds N] [--seconds S]
       [--loads prompt,call,saturation,decode]

Both checkouts serve the same checkpoint through tritonserver, in the order base, head, head, base, and so on, and
get the same requests by token ids. In the first round fixed requests are sent one at a time: unless all scores
have the same bits and all generations the same tokens, the exit code is 1. Prompts are a tenth as long for a
vocabulary below 10,000, taken to be a small model on a CPU.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hiscore_client import AsyncScoreClient, ScoreClient
from perf import script
from perf.loadgen.generator import Generator
from perf.loadgen.scorer_calls import Float32, Shape, draw
from perf.machine.facts import process_facts

SCORING = {"prompt": (1, 1), "call": (10, 1), "saturation": (10, 32)}
"""Items of a call, and calls in flight."""
DECODE = {"1 sequence": (1, 1024, 128, 8), "32 sequences": (32, 1024, 128, 3), "5 long": (5, 8192, 256, 2)}
"""Sequences at once, tokens of a prompt, tokens to generate, repetitions."""
CLIENTS = 4
READY = re.compile(r"gRPC (\S+?),")


@dataclass(frozen=True)
class Model:
    """The vocabulary to draw ids from, and the factor for all prompt lengths."""

    vocabulary: int
    factor: float

    @classmethod
    def of(cls, checkpoint: Path) -> "Model":
        vocabulary = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        return cls(vocabulary, 1.0 if vocabulary >= 10_000 else 0.1)

    def tokens(self, count: int) -> int:
        return max(1, round(count * self.factor))

    def ids(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn: list[int] = rng.integers(0, self.vocabulary, self.tokens(count)).tolist()
        return drawn


@contextmanager
def served(checkout: Path, checkpoint: Path, log: Path) -> Iterator[str]:
    """Serve a checkpoint with the code of a checkout; yields the address of its gRPC interface."""
    environment = os.environ | {
        "PYTHONPATH": f"{checkout}:{checkout / 'client'}",
        "MODEL": str(checkpoint),
        **dict.fromkeys(("HTTP_PORT", "GRPC_PORT", "METRICS_PORT"), "0"),
        "API_PORT": "",
    }
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "hiscore.launcher"],
            cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = next(filter(None, map(READY.search, process.stdout)), None)
        if ready is None:
            raise RuntimeError(f"{checkout} does not serve, see {log}")
        yield ready[1]
    finally:
        process.terminate()
        process.wait()


def scoring(url: str, model: Model, name: str, seconds: float) -> dict[str, float]:
    """Latencies in ms and items/s of one load on `scorer`; every call has new ids."""
    items, in_flight = SCORING[name]
    shape = Shape(model.tokens(120), items, model.tokens(180))
    calls = draw(np.random.default_rng(1), shape, 500, model.vocabulary, (1, 2))
    with Generator(url, [call.message() for call in calls]) as generator:
        generator.closed_loop(in_flight, min(2.0, seconds))
        samples = generator.closed_loop(in_flight, seconds)
    if errors := [sample.error for sample in samples if sample.error]:
        raise RuntimeError(errors[0])
    latencies = [1e3 * (sample.done - sample.sent) for sample in samples]
    span = max(sample.done for sample in samples) - min(sample.sent for sample in samples)
    p50, p99 = (float(value) for value in np.percentile(latencies, (50, 99)))
    return {"p50_ms": p50, "p99_ms": p99, "items_per_s": len(samples) * items / span}


Arrivals = list[tuple[float, int]]
"""When a response came, and how many tokens it held."""


async def _generate(url: str, prompts: list[list[int]], tokens: int) -> list[tuple[float, Arrivals]]:
    async with AsyncScoreClient(url) as client:

        async def one(prompt: list[int]) -> tuple[float, Arrivals]:
            sent, arrivals = time.perf_counter(), []
            async for chunk in client.generate(prompt, max_tokens=tokens, ignore_eos=True):
                if len(chunk.token_ids):
                    arrivals.append((time.perf_counter(), len(chunk.token_ids)))
            return sent, arrivals

        return list(await asyncio.gather(*map(one, prompts)))


def _client(url: str, prompts: list[list[int]], tokens: int) -> list[tuple[float, Arrivals]]:
    return asyncio.run(_generate(url, prompts, tokens))


def decoding(url: str, model: Model, name: str) -> dict[str, float]:
    """Mean time per token and p50 of the first token in ms, and tokens/s, of sequences that start together."""
    count, prompt, tokens, repetitions = DECODE[name]
    rng, clients = np.random.default_rng(2), min(count, CLIENTS)
    generated: list[tuple[float, Arrivals]] = []
    rates = []
    with ProcessPoolExecutor(clients, get_context("spawn")) as pool:
        for repetition in range(repetitions + 1):
            prompts = [model.ids(rng, prompt) for _ in range(count)]
            parts = [pool.submit(_client, url, prompts[i::clients], tokens) for i in range(clients)]
            burst = [sequence for part in parts for sequence in part.result()]
            if repetition:  # the first one warms up
                generated += burst
                span = max(arrivals[-1][0] for _, arrivals in burst) - min(sent for sent, _ in burst)
                rates.append(count * tokens / span)
    per_token = [1e3 * (a[-1][0] - a[0][0]) / (tokens - a[0][1]) for _, a in generated]
    first = [1e3 * (arrivals[0][0] - sent) for sent, arrivals in generated]
    return {
        "ms_per_token": statistics.fmean(per_token),
        "first_token_p50_ms": statistics.median(first),
        "tokens_per_s": statistics.median(rates),
    }


def answers(url: str, model: Model) -> tuple[list[Float32], list[list[int]]]:
    """Scores of fixed calls and tokens of fixed prompts, each sent alone."""
    rng = np.random.default_rng(3)
    scores, generations = [], []
    with ScoreClient(url) as client:
        for query, count, item in ((120, 10, 180), (0, 3, 17), (300, 1, 40), (2000, 40, 20), (33, 200, 3)):
            ids = model.ids(rng, query) if query else []
            items = [model.ids(rng, item) for _ in range(count)]
            for apply_softmax in (False, True):
                # Twice: the second time the query comes from the prefix cache.
                for _ in range(2):
                    result = client.score_ids(ids, items, [1, 2, 5], apply_softmax=apply_softmax)
                    scores.append(result.scores)
        sampled = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 7}
        requests: list[tuple[int, dict[str, Any]]] = [
            (40, {}), (500, {}), (5000, {}), (5000, {"sparse": False}), (700, sampled)
        ]  # fmt: skip
        for prompt, options in requests:
            chunks = client.generate(model.ids(rng, prompt), max_tokens=64, ignore_eos=True, **options)
            generations.append([int(token) for chunk in chunks for token in chunk.token_ids])
    return scores, generations


def main() -> int:
    """Serve, measure, compare; the exit code is 0 if both checkouts answer alike."""
    parser = script.arguments(__doc__, "compare_checkouts.json and server.log")
    for name in ("checkpoint", "base", "head"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each scoring load")
    parser.add_argument("--loads", type=script.by_comma, default=[*SCORING, "decode"])
    asked = parser.parse_args()
    model = Model.of(asked.checkpoint)
    asked.out.mkdir(parents=True, exist_ok=True)
    checkouts = {"base": asked.base.resolve(), "head": asked.head.resolve()}
    measured: list[dict[str, Any]] = []
    answered = {}
    for index in range(asked.rounds):
        for name in list(checkouts) if index % 2 == 0 else list(checkouts)[::-1]:
            with served(checkouts[name], asked.checkpoint.resolve(), asked.out / "server.log") as url:
                loads: dict[str, Any] = {
                    load: scoring(url, model, load, asked.seconds) for load in SCORING if load in asked.loads
                }
                if "decode" in asked.loads:
                    loads |= {load: decoding(url, model, load) for load in DECODE}
                    if index == 0:
                        answered[name] = answers(url, model)
            measured.append({"checkout": name, "loads": loads})
            print(name, json.dumps(loads), flush=True)
    results: dict[str, Any] = {"machine": process_facts(asked.commit), "measured": measured}
    if answered:
        (base_scores, base_tokens), (scores, tokens) = answered["base"], answered["head"]
        results["same_scores"] = [
            a.tobytes() == b.tobytes() for a, b in zip(base_scores, scores, strict=True)
        ]
        results["same_tokens"] = [a == b for a, b in zip(base_tokens, tokens, strict=True)]
        print("same scores", results["same_scores"], "same tokens", results["same_tokens"])
    script.write_json(asked.out / "compare_checkouts.json", results)
    return 0 if all(results.get("same_scores", [])) and all(results.get("same_tokens", [])) else 1


if __name__ == "__main__":
    sys.exit(main())
