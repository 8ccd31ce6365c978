"""Time choices of 5 to 30 tokens behind a context: in process, and by callers of a server.

usage: python -m perf.scoring.likelihood [--geometry NAME] [--vocabulary N] [--device cpu] [--questions N]

Weights are random. `items_per_s` counts choices, `alone_ms` is a question's median, and `apart` how far a choice's
logarithm is from that of the choice alone, at most.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from hiscore.launcher import Server
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import with_tries
from hiscore.scoring.scorer import Scorer
from hiscore.settings import Limits
from hiscore_client import ScoreClient
from perf.loadgen.served import limit_threads, server_settings
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, write_json

LOADS = [(choices, context) for context in (500, 2_000) for choices in (4, 10)]
CONTEXT, CALLERS, BUDGET = 4_096, 32, {"cuda": 16_384, "cpu": 2_048}
Question: TypeAlias = tuple[list[int], list[list[int]]]
Ask: TypeAlias = Callable[[Sequence[Question]], list[list[float]]]


def draw(choices: int, context: int, count: int, vocabulary: int, seed: int) -> list[Question]:
    rng = np.random.default_rng(seed)

    def tokens(length: int) -> list[int]:
        return list(map(int, rng.integers(0, vocabulary, length)))

    lengths = [list(map(int, rng.integers(5, 31, choices))) for _ in range(count)]
    return [(tokens(context), list(map(tokens, of_choices))) for of_choices in lengths]


def in_process(scorer: Scorer, budget: int, asked: Sequence[Question]) -> list[list[float]]:
    """Score questions in batches of a forward, of which one is launched while another runs."""
    batches: list[list[ScoreRequest]] = [[]]
    for context, choices in asked:
        ids, options = np.concatenate(choices).astype(np.int32), ScoreOptions(log_scores=True)
        prompt = MultiItemPrompt.of(context, [[]])
        prompt = with_tries(prompt, ids, [*map(len, choices)], None, options, Limits(), scorer.facts)
        request = ScoreRequest.of(scorer.packing.prompt(prompt), ids, options)
        if sum(each.prompt.computed for each in (*batches[-1], request)) > budget and batches[-1]:
            batches.append([])
        batches[-1].append(request)
    running, found = scorer.submit(batches[0]), []
    for batch in batches[1:]:
        before, running = running, scorer.submit(batch)
        found += before.result()[0]
    return [answer.scores[0].tolist() for answer in (*found, *running.result()[0])]  # type: ignore[union-attr]


def through_server(client: ScoreClient, asked: Sequence[Question]) -> list[list[float]]:
    def one(question: Question) -> list[float]:
        context, choices = question
        ids, lengths = np.concatenate(choices), [*map(len, choices)]
        result = client.score_ids(context, [[]], ids, label_lengths=lengths, log_scores=True)
        return list(map(float, result.scores[0]))

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(one, asked))


def measured(ask: Ask, drawn: Callable[..., list[Question]], count: int, choices: int) -> dict[str, float]:
    def seconds(asked: Sequence[Question]) -> float:
        start = time.perf_counter()
        ask(asked)
        return time.perf_counter() - start

    seconds(drawn(count=min(8, count), seed=1))
    asked = drawn(count=count, seed=2)
    found = {"items_per_s": count * choices / seconds(asked)}
    alone = statistics.median(seconds([each]) for each in drawn(count=min(20, count), seed=3))
    context, own = asked[0]
    single = [ask([(context, [choice])])[0][0] for choice in own]
    apart = np.abs(np.subtract(single, ask(asked)[0])).max()
    return {**found, "alone_ms": 1_000 * alone, "apart": float(apart)}


def main() -> None:
    parser = arguments(__doc__, "likelihood-GEOMETRY-VOCABULARY.json", required=False)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="qwen3-0.6b")
    parser.add_argument("--vocabulary", type=int, help="in place of the model's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--questions", type=int, default=64)
    options = parser.parse_args()
    device, config = options.device, random_checkpoint.config_of(options.geometry, CONTEXT)
    vocabulary = config["vocab_size"] = options.vocabulary or config["vocab_size"]
    results: dict[str, Any] = {"machine": process_facts(options.commit), "vocabulary": vocabulary}

    def measure(way: str, ask: Ask) -> None:
        for choices, context in LOADS:
            drawn = partial(draw, choices, context, vocabulary=vocabulary)
            name = f"{choices} choices behind {context:,}, {way}"
            results[name] = measured(ask, drawn, options.questions, choices)
            print(name, results[name], flush=True)
        if device == "cuda":
            results[f"reserved_gib, {way}"] = torch.cuda.max_memory_reserved() / 2**30
        if options.out:
            write_json(options.out / f"likelihood-{options.geometry}-{vocabulary}.json", results)

    limit_threads(device)
    with tempfile.TemporaryDirectory() as name:
        random_checkpoint.save(config, Path(name), device=device)
        scorer = load_decoder_scorer(Path(name), device, "auto", BUDGET[device])
        measure("in process", partial(in_process, scorer, BUDGET[device]))
        del scorer
        torch.cuda.empty_cache()
        settings = server_settings(model=name, models="scorer", device=device)
        with Server(settings) as server, ScoreClient(server.grpc_url) as client:
            measure("through a server", partial(through_server, client))


if __name__ == "__main__":
    main()
