"""Scoring and decoding on a CPU, through the server, against transformers in this process.

usage: python -m perf.cpu_speed --out DIR [--checkpoint DIR] [--rounds 5] [--prompt 1800] [--tokens 48]

Both compute in float32, unless --dtype says otherwise of the server, and with as many threads as there are cores.
They take turns, and ratios are of the times within a round. Scoring: of the time by computed token, for one prompt
of 300 tokens, and for ten items of 180 behind a query of 120, which transformers computes as a batch of ten.
Decoding: of the time of the first token, and of a later one, by selector. Above 1 the server is slower.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore_client import ScoreClient
from perf.loadgen.served import server_settings
from perf.machine.facts import machine_facts, triton_version
from perf.machine.interleave import interleave
from perf.script import arguments, write_json

QUERY, ITEM = 120, 180
ITEMS = (1, 10)
SELECTORS = ("dense", "auto")


@dataclass(frozen=True)
class Ratio:
    """Ratio of the server's time to transformers'."""

    what: str
    ours_s: float
    theirs_s: float
    low: float
    ratio: float
    high: float

    def __str__(self) -> str:
        times = f"{1e3 * self.ours_s:9.2f} ms, transformers {1e3 * self.theirs_s:9.2f} ms"
        return f"{self.what:32s} {times}: x {self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Peer:
    """transformers in this process."""

    def __init__(self, checkpoint: Path) -> None:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self._model = model.eval()
        self.vocabulary: int = model.config.vocab_size

    @torch.inference_mode()
    def score(self, rows: list[list[int]]) -> None:
        """One forward of all prompts, which have one length."""
        self._model(torch.tensor(rows), logits_to_keep=1, use_cache=False)

    @torch.inference_mode()
    def decode(self, prompt: list[int], tokens: int) -> tuple[float, float]:
        """Seconds of the first token, and of a later one."""
        begin, ids = time.perf_counter(), torch.tensor([prompt])
        cache = transformers.DynamicCache(config=self._model.config)
        times = []
        for _ in range(tokens):
            logits = self._model(ids, past_key_values=cache, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.perf_counter())
        return times[0] - begin, (times[-1] - times[0]) / (tokens - 1)


def timed(work: Callable[[], object], units: int) -> Callable[[], float]:
    """A function that says how many seconds a unit of the work took."""

    def run() -> float:
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) / units

    return run


def scoring(client: ScoreClient, peer: Peer, rounds: int) -> Iterator[Ratio]:
    """The server's calls against transformers' batches."""
    rng = np.random.default_rng(0)
    query = rng.integers(0, peer.vocabulary, QUERY).tolist()
    for count in ITEMS:
        items = [rng.integers(0, peer.vocabulary, ITEM).tolist() for _ in range(count)]
        rows = [query + item for item in items]
        theirs = timed(partial(peer.score, rows), count * (QUERY + ITEM))
        ours = timed(
            partial(client.score_ids, query, items, [10, 11], apply_softmax=True),
            QUERY + count * ITEM,
        )
        theirs(), ours()
        found = interleave({"theirs": theirs, "ours": ours}, rounds)
        yield ratio(f"scoring {count} x ({QUERY} + {ITEM}), a token", found)


def decoding(client: ScoreClient, peer: Peer, name: str, options: argparse.Namespace) -> list[Ratio]:
    """The server's streams against transformers' loop."""
    rng = np.random.default_rng(1)

    def prompt() -> list[int]:
        tokens: list[int] = rng.integers(0, peer.vocabulary, options.prompt).tolist()
        return tokens

    def ours() -> tuple[float, float]:
        begin, times = time.perf_counter(), []
        ids = prompt()
        for chunk in client.generate(ids, max_tokens=options.tokens, ignore_eos=True):
            times += [time.perf_counter()] * len(chunk.token_ids)
        return times[0] - begin, (times[-1] - times[0]) / (options.tokens - 1)

    later: dict[str, list[float]] = {"theirs": [], "ours": []}

    def first(arm: str, run: Callable[[], tuple[float, float]]) -> Callable[[], float]:
        def both() -> float:
            first_s, later_s = run()
            later[arm].append(later_s)
            return first_s

        return both

    ours()
    arms = {
        "theirs": first("theirs", lambda: peer.decode(prompt(), options.tokens)),
        "ours": first("ours", ours),
    }
    firsts = interleave(arms, options.rounds)
    taken = {arm: iter(values) for arm, values in later.items()}
    laters = interleave({arm: partial(next, values) for arm, values in taken.items()}, options.rounds)
    return [
        ratio(f"{name}: first of {options.prompt} tokens", firsts),
        ratio(f"{name}: a later token", laters),
    ]


def ratio(what: str, found: Any) -> Ratio:
    """Ratio of the arms `ours` and `theirs`, measured in turns."""
    of_both = found["ours"].ratio
    values = found["ours"].value.median, found["theirs"].value.median
    return Ratio(what, *values, of_both.low, of_both.median, of_both.high)


def main() -> int:
    """Measure; writes cpu_speed.json."""
    options = parse()
    checkpoint = options.checkpoint or resolve()
    peer = Peer(checkpoint)
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[Ratio] = []
    triton = ""
    for selector in SELECTORS:
        settings = server_settings(
            model=str(checkpoint), device="cpu", dtype=options.dtype, query_cache_bytes=0, selector=selector
        )
        with (
            Server(settings, options.out / f"server-cpu-speed-{selector}.log") as server,
            ScoreClient(server.grpc_url) as client,
        ):
            triton = triton_version(server.http_url)
            if selector == SELECTORS[0]:
                found += scoring(client, peer, options.rounds)
            found += decoding(client, peer, selector, options)
    print(*found, sep="\n")
    results = {
        "machine": machine_facts(options.commit, tritonserver=triton),
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "slowest": max(each.ratio for each in found),
        "median_ratio": statistics.median(each.ratio for each in found),
        "ratios": [asdict(each) for each in found],
    }
    write_json(options.out / "cpu_speed.json", results)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "cpu_speed.json")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=1_800)
    parser.add_argument("--tokens", type=int, default=48)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
