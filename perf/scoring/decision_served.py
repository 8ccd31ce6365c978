"""Questions a second of /v1/decisions and of the same prompts over gRPC: 1 to 400 questions about one state.

usage: python -m perf.scoring.decision_served --out DIR --checkpoint DIR [--tokenizer DIR] [--rounds N]

--checkpoint is served; if it has no config.json yet, random weights of Qwen3-0.6B's geometry are written there,
with the tokenizer of --tokenizer. A state has 1,000 words and a question 40, of about a token each, every call has
texts of its own, and the prefix cache is off. Beside decision_served.json it leaves prompts.json, with which
`decision_sglang` asks SGLang for the same on the same machine. Without a GPU: a rehearsal in small sizes.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.launcher.device_choice import choose_device
from hiscore_client import ScoreClient
from perf.loadgen.api_calls import WAYS, Call, decision_call
from perf.loadgen.served import limit_threads, server_settings
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.script import arguments, write_json

CONTEXT = 32_768
WARM_UP = 2


def measure(urls: dict[str, str], calls: dict[int, list[Call]]) -> dict[str, Any]:
    """Milliseconds of both ways by number of questions; the first calls warm up."""
    found: dict[str, Any] = {}
    for count, of_count in calls.items():
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn, call in enumerate(of_count):
            for way in sorted(WAYS, reverse=bool(turn % 2)):
                once = WAYS[way](urls[way], call)
                start = time.perf_counter()
                once()
                took[way].append(1e3 * (time.perf_counter() - start))
        found[str(count)] = {way: rates(count, each[WARM_UP:]) for way, each in took.items()}
        shown = ", ".join(
            f"{way} {each['p50_ms']:.1f} ms, {each['questions_a_second']:.0f} questions/s"
            for way, each in found[str(count)].items()
        )
        print(f"{count:3d} questions: {shown}", flush=True)
    return found


def rates(count: int, took: list[float]) -> dict[str, float]:
    """Of calls of so many questions that took so many milliseconds."""
    p50 = statistics.median(took)
    return {"p50_ms": p50, "min_ms": min(took), "questions_a_second": 1e3 * count / p50}


def as_prompts(url: str, calls: dict[int, list[Call]]) -> dict[str, Any]:
    """What another program needs to answer the same, with our answers to the last call of each number."""
    client = ScoreClient(url)
    prompts: dict[str, Any] = {"warm_up": WARM_UP, "labels": [], "calls": {}, "scores": {}}
    for count, of_count in calls.items():
        ids = [call.ids for call in of_count]
        prompts["labels"] = ids[0].labels[:2]
        prompts["calls"][str(count)] = [{"query": each.query, "items": each.items} for each in ids]
        last = client.score_ids(ids[-1].query, ids[-1].items, prompts["labels"], apply_softmax=True)
        prompts["scores"][str(count)] = last.scores.tolist()
    return prompts


def main() -> int:
    """Serve and measure; writes decision_served.json and prompts.json."""
    logging.basicConfig(level=logging.WARNING)
    device, _ = choose_device("auto")
    limit_threads(device)
    options = parse(rehearsal=device == "cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint: Path = options.checkpoint
    if not (checkpoint / "config.json").is_file():
        checkpoints.write(checkpoint, device, options.tokenizer)
    rng = np.random.default_rng(0)
    calls = {
        count: [
            decision_call(rng, options.state, count, options.words, checkpoint, CONTEXT)
            for _ in range(WARM_UP + options.rounds)
        ]
        for count in options.questions
    }
    settings = server_settings(
        model=str(checkpoint), models="tokenizer,scorer,score", query_cache_bytes=0, api_port=0
    )
    with GpuSampler() as gpu, Server(settings, options.out / "server.log") as server:
        log = options.out / "api.log"
        with Api(settings, server.checkpoint, server.grpc_url, server.models, log) as api:
            found = measure({"grpc": server.grpc_url, "http": api.url}, calls)
        write_json(options.out / "prompts.json", as_prompts(server.grpc_url, calls))
        triton = triton_version(server.http_url)
    results = {
        "engine": "hiscore",
        "questions": found,
        "sizes": {"state": options.state, "words": options.words, "rounds": options.rounds},
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
    }
    (options.out / "decision_served.json").write_text(json.dumps(results, indent=1))
    return 0


def parse(rehearsal: bool) -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "decision_served.json, prompts.json and logs")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="whose tokenizer random weights get")
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 3] if rehearsal else [1, 10, 50, 400])
    parser.add_argument("--state", type=int, default=20 if rehearsal else 1_000, help="words of a state")
    parser.add_argument("--words", type=int, default=5 if rehearsal else 40, help="words of a question")
    parser.add_argument("--rounds", type=int, default=2 if rehearsal else 15, help="calls of each number")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
