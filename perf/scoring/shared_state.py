"""Time questions about one state on the GPU, and compare their scores however they are asked.

usage: python -m perf.scoring.shared_state [--geometry NAME] [--out DIR]  (one CUDA GPU)

Weights are random, with a real model's geometry. The kernels that take the time: `perf.scoring.forward`.
"""

import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Float32
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources
from hiscore.server.shared_weights import SharedWeights
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.scoring.forward import call, gpu_ms, host_ms
from perf.script import arguments, write_json

STATE, QUESTION, TOGETHER = 1_000, 40, 14
IN_MATRIX = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "in_proj",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)


class SameWeights(SharedWeights):
    """Gives a second scorer the weights of the first."""

    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights

    def load(self, key: str, load: Any) -> Any:
        return self.weights


def scores(scorer: Scorer, requests: list[ScoreRequest]) -> list[Float32]:
    return [answer.scores for answer in scorer.score(requests)[0]]  # type: ignore[union-attr]


def moves(scorer: Scorer, alone: Scorer, rng: np.random.Generator) -> dict[str, float]:
    """The largest move of a log-probability from those of one call alone without a cache."""
    asked = partial(call, rng, 300, 5, 90)
    request, others = asked(), [asked(), call(rng, 2_500, 3, 900)]
    (truth,) = scores(alone, [request])
    found = {
        "in a batch": scores(alone, [others[0], request, others[1]])[1],
        "cold": scores(scorer, [request])[0],
        "after a hit": scores(scorer, [request])[0],
    }
    parts = [request.prompt.part(item, item + 1) for item in range(5)]
    each = [scores(alone, [ScoreRequest(part, request.labels, request.options)])[0] for part in parts]
    found["one by one"] = np.concatenate(each)
    return {name: float(np.abs(np.log(each) - np.log(truth)).max()) for name, each in found.items()}


def matrix_peak() -> float:
    """FLOP/s of a product of 8,192 x 8,192 in bfloat16, on random data."""
    x = torch.randn(8_192, 8_192, device="cuda", dtype=torch.bfloat16)
    for count in (5, 20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            x @ x
        torch.cuda.synchronize()
    return 20 * 2 * 8_192**3 / (time.perf_counter() - start)


def requests_per_second(scorer: Scorer, rng: np.random.Generator, batches: int = 8) -> float:
    """Requests of four questions, in batches of `TOGETHER`, of which one is launched while another runs."""
    made = [[call(rng, STATE, 4, QUESTION) for _ in range(TOGETHER)] for _ in range(batches + 1)]
    scorer.score(made.pop())
    pending: deque[Any] = deque()
    start = time.perf_counter()
    for batch in made:
        pending.append(scorer.submit(batch))
        if len(pending) > 1:
            pending.popleft().result()
    while pending:
        pending.popleft().result()
    return batches * TOGETHER / (time.perf_counter() - start)


def main() -> None:
    parser = arguments(__doc__, "shared_state-GEOMETRY.json", required=False)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3.5-0.8b")
    options = parser.parse_args()
    rng, directory = np.random.default_rng(0), Path(tempfile.mkdtemp())
    random_checkpoint.write_config(options.geometry, directory)
    results: dict[str, Any] = {"machine": process_facts(options.commit), "geometry": options.geometry}

    def say(name: str, value: Any) -> None:
        results[name] = value
        print(name, value, flush=True)
        if options.out:
            write_json(options.out / f"shared_state-{options.geometry}.json", results)

    start = time.perf_counter()
    with random_checkpoint.in_memory("cuda"):
        scorer = load_decoder_scorer(directory, "cuda", "bfloat16", 16_384, 4 << 30, max_context=8_192)
    say("load_s", time.perf_counter() - start)
    same = ServerResources(weights=SameWeights(scorer.runner._decoder.weights))  # type: ignore[attr-defined]
    with random_checkpoint.in_memory("cuda"):
        alone = load_decoder_scorer(directory, "cuda", "bfloat16", 2_048, 0, 8_192, same)
    say("largest move of a log-probability", moves(scorer, alone, rng))
    del alone
    # Calls, and tokens of each: of the query, items, and tokens of an item.
    shapes = {
        "a prompt of 300": (1, 280, 1, 20),
        "10 x (120 + 180)": (1, 120, 10, 180),
        "32 calls of 10 x (120 + 20)": (32, 120, 10, 20),
    }
    for count in (1, 4, 10, 50):
        shapes[f"{count} questions"] = 1, STATE, count, QUESTION
        shapes[f"as many tokens as {count} questions"] = 1, STATE + (count - 1) * QUESTION, 1, QUESTION

    def make(name: str) -> list[ScoreRequest]:
        calls, query, items, item = shapes[name]
        return [call(rng, query, items, item) for _ in range(calls)]

    for name in shapes:
        gpu = gpu_ms(scorer, [make(name) for _ in range(8)])
        launch, total = host_ms(scorer, [make(name) for _ in range(8)])
        say(name, {"gpu_ms": gpu, "launch_ms": launch, "total_ms": total})
    state = call(rng, STATE, 4, QUESTION)
    scorer.score([state])
    say(
        "4 questions, the state kept",
        dict(zip(("launch_ms", "total_ms"), host_ms(scorer, [[state]] * 8), strict=True)),
    )
    tensors = random_checkpoint.tensors(random_checkpoint.config_of(options.geometry))
    numbers = sum(int(np.prod(shape)) for name, shape in tensors.items() if any(p in name for p in IN_MATRIX))
    each, peak = requests_per_second(scorer, rng), matrix_peak()
    flops = each * (STATE + 4 * QUESTION) * 2 * numbers
    say("saturated", {"requests_per_s": each, "flops": flops, "peak": peak, "share": flops / peak})
    say("reserved_gib", torch.cuda.memory_reserved() / 2**30)


if __name__ == "__main__":
    main()
