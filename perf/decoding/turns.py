"""First tokens in a conversation, turn by turn: with what earlier turns left on device and host, and without.

usage: python -m perf.decoding.turns --out DIR [--geometry qwen3-0.6b] [--turns 10] [--tokens 8192] [--answer 64]
           [--rounds 5] [--selectors auto,dense]

Each turn's prompt is all that was said before, with the model's own answers, and as much new text as makes it grow
evenly to `--tokens`. In this process, greedy, one conversation at a time, with PREFIX_CACHE and without. Beside it
stands what a prompt of the new tokens alone takes, and how many of the cached tokens were still on the device.
Weights are random, with a real model's geometry. Without a GPU a tiny model takes its place, as a rehearsal whose
numbers mean nothing.

The share of tokens in which the two agree is reported and nothing more: the keys and values of an answer come from
steps where they are cached, and from a prefill where they are not. In bfloat16 these round differently, and random
weights have many tokens that are almost equally likely; once two answers differ, so do the prompts that follow.
"""

import gc
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch

from hiscore.arrays import Int32
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.requests.sampling_params import parse_sampling_params
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.errors import RequestError
from perf.decoding.arms import Arm, build_worker, shared_weights
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, by_comma, write_json

GIB = 2**30


class Answers(Protocol):
    """Something that answers prompts."""

    def answer(self, prompt: Int32, tokens: int) -> tuple[float, list[int]]: ...


class Server:
    """An engine that answers one prompt at a time."""

    def __init__(self, checkpoint: Path, selector: str, caching: bool) -> None:
        cuda = torch.cuda.is_available()
        sizes = {} if cuda else {"sparse_top_k": 64, "device_buffer_size": 128}
        memory = MemoryBudget(12 * GIB, 16 * GIB, 4) if cuda else MemoryBudget(GIB // 16, GIB // 16, 4)
        arm = Arm(selector, {"selector": selector, "prefix_cache": caching} | sizes)
        self._outputs: SimpleQueue[tuple[float, Output | RequestError]] = SimpleQueue()
        self.engine = DecodeEngine(build_worker(checkpoint, arm, memory), None, frozenset(), 16, self._emit)

    def _emit(self, _: int, output: Output | RequestError) -> None:
        self._outputs.put((time.perf_counter(), output))

    def answer(self, prompt: Int32, tokens: int) -> tuple[float, list[int]]:
        """Milliseconds to the first token, and all of them."""
        params = parse_sampling_params(json.dumps({"max_tokens": tokens, "ignore_eos": True}))
        found: list[int] = []
        first = 0.0
        start = time.perf_counter()
        self.engine.submit(DecodeCall(prompt, params, math.inf), 0)
        while len(found) < tokens:
            at, output = self._outputs.get()
            if isinstance(output, RequestError):
                raise SystemExit(f"a turn failed: {output.message}")
            first = first or at
            found += output.token_ids
        return 1e3 * (first - start), found


def conversation(server: Answers, new: Iterable[Int32], answer: int) -> tuple[list[float], list[int]]:
    """Return the milliseconds to the first token of each turn, and all answers."""
    said = np.empty(0, np.int32)
    times, answers = [], []
    for text in new:
        said = np.concatenate([said, text])
        took, tokens = server.answer(said, answer)
        said = np.concatenate([said, np.array(tokens, np.int32)])
        times.append(took)
        answers += tokens
    return times, answers


def compare(checkpoint: Path, selector: str, options: Any, vocabulary: int) -> dict[str, Any]:
    """Medians over rounds of each turn's first token, in milliseconds."""
    rng = np.random.default_rng(0)
    grows = options.tokens // options.turns
    times: dict[str, list[list[float]]] = {"cached": [], "computed": [], "new tokens alone": []}
    equal: list[float] = []
    with ExitStack() as stack:
        servers = {
            name: Server(checkpoint, selector, caching)
            for name, caching in (("cached", True), ("computed", False))
        }
        for server in servers.values():
            stack.enter_context(closing(server.engine))
        gc.collect()
        for done in range(options.rounds + 1):
            new = rng.integers(0, vocabulary, (options.turns, grows - options.answer)).astype(np.int32)
            answers = {}
            for name, server in servers.items():
                took, answers[name] = conversation(server, new, options.answer)
                if done:  # the first warms up
                    times[name].append(took)
            equal.append(float(np.mean(np.equal(answers["cached"], answers["computed"]))))
            alone = [servers["computed"].answer(text, 1)[0] for text in new]
            if done:
                times["new tokens alone"].append(alone)
        stats = servers["cached"].engine.stats()
    medians = {name: np.median(rows, 0).tolist() for name, rows in times.items()}
    return {
        "ms": medians,
        "cached_tokens": stats.cached_tokens,
        "cached_on_device": stats.cached_on_device,
        "equal_tokens": statistics.mean(equal),
    }


def main() -> None:
    """Measure; writes decode_turns.json."""
    cuda = torch.cuda.is_available()
    parser = arguments(__doc__, "decode_turns.json")
    parser.add_argument("--geometry", choices=tuple(GEOMETRIES), default="qwen3-0.6b" if cuda else "tiny")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--tokens", type=int, default=8_192 if cuda else 200, help="of the last prompt and answer"
    )
    parser.add_argument("--answer", type=int, default=64 if cuda else 4, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5 if cuda else 2)
    parser.add_argument("--selectors", type=by_comma, default=["auto", "dense"])
    options = parser.parse_args()
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "arms": {},
    }
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        context = max(256, 2 * options.tokens)
        checkpoint = random_checkpoint.write_config(options.geometry, Path(directory), context)
        for selector in options.selectors:
            found = compare(checkpoint, selector, options, GEOMETRIES[options.geometry]["vocab_size"])
            results["arms"][selector] = found
            for name, row in found["ms"].items():
                shown = " ".join(f"{each:.1f}" for each in row)
                print(f"{selector:6s} {name:16s} first token ms by turn: {shown}", flush=True)
            last = found["ms"]["cached"][-1] / statistics.median(found["ms"]["new tokens alone"])
            print(f"{selector:6s} the last turn takes {last:.2f} times its new tokens alone", flush=True)
            there = found["cached_on_device"] / found["cached_tokens"]
            print(
                f"{selector:6s} {there:.1%} of the cached tokens were on the device; "
                f"{found['equal_tokens']:.1%} of the answers' tokens are the same with and without",
                flush=True,
            )
    write_json(options.out / "decode_turns.json", results)


if __name__ == "__main__":
    main()
