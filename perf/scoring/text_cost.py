"""Measure what sending text costs: `score` by text against `scorer` by the same texts' ids, in turns.

usage: python -m perf.scoring.text_cost --out DIR [--tokenizer DIR | --model DIR] [--rounds N]

On a GPU it serves Qwen3-0.6B's geometry with random weights and the tokenizer of --tokenizer, a directory with
tokenizer.json. On a CPU it rehearses with the default model and few, short texts. The prefix cache is off. Exits
with 1 if text and ids get different scores, or if text costs 10% or more on a GPU.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient

from hiscore.checkpoint import resolve
from hiscore.errors import RequestError
from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore.models.facts import read_facts
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import DEFAULT_MODEL, Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from perf.loadgen.generator import Generator
from perf.loadgen.score_check import check_control
from perf.loadgen.scorer_calls import Shape
from perf.loadgen.served import server_settings
from perf.loadgen.text_calls import as_ids_message, draw_texts, text_message
from perf.loadgen.window import Meter, Window
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.machine.interleave import ArmResult, interleave
from perf.models import checkpoints
from perf.script import arguments, write_json

TARGET = 0.10
LABELS = (9454, 2753)
Text = tuple[str, list[str]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run; a shape counts words, of about a token each, and seconds are those of one window."""

    shape: Shape
    texts: int
    in_flight: int
    seconds: float
    rounds: int
    tolerance: float
    """The largest difference of a score that the contract allows between batches."""


GPU = Sizes(Shape(120, 10, 180), texts=600, in_flight=32, seconds=3, rounds=7, tolerance=5e-3)
CPU = Sizes(Shape(24, 3, 8), texts=12, in_flight=4, seconds=8, rounds=3, tolerance=2e-5)


def measure(server: Server, gpu: GpuSampler, sizes: Sizes, texts: Sequence[Text]) -> dict[str, Any]:
    """Both ways in turns, under load and one call at a time."""
    client = InferenceServerClient(server.grpc_url)
    by_ids, waits = [], []
    for text in texts:
        start = time.perf_counter()
        by_ids.append(as_ids_message(client, *text, LABELS))
        waits.append(1e3 * (time.perf_counter() - start))
    client.close()
    messages = {"ids": by_ids, "text": [text_message(*text, LABELS) for text in texts]}
    # One pool for both: an answer by text is compared with the answer to the same call by ids.
    meter = Meter(server, gpu, sizes.tolerance, lambda point: None)
    with ExitStack() as stack:
        generators = {
            name: stack.enter_context(Generator(server.grpc_url, sent)) for name, sent in messages.items()
        }
        check_control(generators["ids"].closed_loop(sizes.in_flight, sizes.seconds), sizes.tolerance)

        def window(name: str, in_flight: int) -> Any:
            title = f"{name}, {in_flight} in flight"
            to_measure = Window("text", title, sizes.shape, pool="texts", seconds=sizes.seconds)
            return meter.window(to_measure, lambda: generators[name].closed_loop(in_flight, sizes.seconds))

        loaded = interleave(
            {name: lambda name=name: window(name, sizes.in_flight).rate for name in messages},  # type: ignore[misc]
            sizes.rounds,
        )
        alone = {name: window(name, 1) for name in messages}
    show(loaded, alone, sizes)
    return {
        "groups": {
            "text": {
                "what": f"by text or by ids, {sizes.in_flight} in flight",
                "unit": "calls a second",
                "arms": {name: asdict(result) for name, result in loaded.items()},
            }
        },
        "alone_p50_ms": {name: point.p50 for name, point in alone.items()},
        "tokenizer_alone_p50_ms": statistics.median(waits),
        "cost_of_text": 1 - loaded["text"].ratio.median,
    }


def show(loaded: dict[str, ArmResult], alone: dict[str, Any], sizes: Sizes) -> None:
    """Print a line for each way."""
    for name, result in loaded.items():
        value = f"{result.value!s} calls/s, {sizes.in_flight} in flight, x {result.ratio!s}"
        print(f"{name:5s} {value}; alone p50 {alone[name].p50:.2f} ms", flush=True)


def tokenizer_cost(checkpoint: Path, texts: Sequence[Text]) -> dict[str, float]:
    """Tokenize in this process: milliseconds per call, on the clock and of CPU time over all threads."""
    tokenizer, facts = load_tokenizer(checkpoint), read_facts(checkpoint)
    labels = np.array(LABELS, np.int32)
    calls = [TextRequest(query, items, label_token_ids=labels) for query, items in texts]

    def encode(some: Sequence[TextRequest]) -> Sequence[TokenizedRequest | RequestError]:
        encoder = RequestEncoder(tokenizer, Limits(), facts)
        return encoder.encode([encoder.plan(call) for call in some])

    encode(calls[:8])
    measured: dict[str, float] = {}
    for size in (1, 8):
        wall, cpu = time.perf_counter(), time.process_time()
        encoded = [
            call for start in range(0, len(calls), size) for call in encode(calls[start : start + size])
        ]
        measured[f"wall_ms_in_batches_of_{size}"] = 1e3 * (time.perf_counter() - wall) / len(calls)
        measured[f"cpu_ms_in_batches_of_{size}"] = 1e3 * (time.process_time() - cpu) / len(calls)
    for call in encoded:
        if isinstance(call, RequestError):
            raise call
        measured["tokens"] = len(call.prompt.tokens)
    return measured


def main() -> int:
    """Serve and measure; writes text_cost.json."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device, _ = choose_device("auto")
    sizes = CPU if device == "cpu" else GPU
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = draw_texts(np.random.default_rng(0), sizes.shape, sizes.texts)
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        if options.model or device == "cpu":
            checkpoint = resolve(options.model or DEFAULT_MODEL)
        else:
            checkpoint = Path(directory)
            checkpoints.write(checkpoint, device, options.tokenizer)
        cost = tokenizer_cost(checkpoint, texts)
        settings = server_settings(
            model=str(checkpoint), models="tokenizer,scorer,score", query_cache_bytes=0,
        )  # fmt: skip
        with Server(settings, options.out / "server.log") as server:
            triton = triton_version(server.http_url)
            results = measure(server, gpu, sizes, texts)
    results |= {
        "tokenizer": cost,
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
        "sizes": asdict(sizes),
        "seconds": time.perf_counter() - begin,
    }
    write_json(options.out / "text_cost.json", results)
    lost = results["cost_of_text"]
    print(f"text costs {lost:.1%} of the throughput (target: below {TARGET:.0%}); tokenizer {cost}")
    return int(device != "cpu" and lost >= TARGET)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "text_cost.json and server.log")
    parser.add_argument("--tokenizer", type=Path, help="a directory with tokenizer.json")
    parser.add_argument("--model", help="serve this checkpoint instead")
    parser.add_argument("--rounds", type=int, help="how often each way is run")
    options = parser.parse_args()
    if not options.model and not options.tokenizer and choose_device("auto")[0] == "cuda":
        parser.error("random weights have no tokenizer: --tokenizer DIR or --model DIR is missing")
    return options


if __name__ == "__main__":
    sys.exit(main())
