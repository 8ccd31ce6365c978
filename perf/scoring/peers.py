"""The same calls by other programs, in turns on one machine: same ids, same weights.

usage: python -m perf.scoring.peers --out DIR [--checkpoint DIR] [--rounds N] [--only 'hiscore;vLLM']

On a GPU the model has Qwen3-0.6B's geometry and random weights, in bfloat16; on a CPU it is the checkpoint
(default: the demo's model), in float32. Ids are new in every round, so a prefix cache can only find the query
within a call. Scores are compared before the clock runs; a peer that fails or gives other scores is left out, and
the exit code is 1.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Float32
from hiscore.models.config import read_architecture
from perf.loadgen.scorer_calls import Ids, Shape, draw
from perf.loadgen.window import WrongScores
from perf.machine.facts import process_facts
from perf.machine.interleave import interleave
from perf.scoring.peer_engines import PEERS, Peer, Unavailable
from perf.scoring.roofline import subject
from perf.script import arguments, failed, write_json

# Float32: the contract's tolerance. In bfloat16 each program is within 2e-2 of float32, so two of them are within
# twice that of each other.
TOLERANCES = {"cpu": 2e-5, "cuda": 4e-2}


@dataclass(frozen=True)
class Sizes:
    """How much is measured: `loads` are calls per batch by name, `windows` batches per window."""

    shape: Shape
    loads: Mapping[str, int]
    labels: tuple[int, int]
    rounds: int
    windows: int


GPU = Sizes(Shape(120, 10, 180), {"one call": 1, "eight calls": 8}, (9454, 2753), rounds=7, windows=10)
CPU = Sizes(Shape(24, 3, 8), {"one call": 1, "four calls": 4}, (9, 7), rounds=3, windows=2)


def compare(results: Mapping[str, Float32], tolerance: float) -> dict[str, float]:
    """Compare scores, float32 [items, labels], with the first arm's: the largest difference by arm.

    Raises:
        WrongScores: A difference exceeds the tolerance, or items score so alike that a mistake would not show.
    """
    base = next(iter(results.values()))
    control = float(np.abs(base - np.roll(base, 1, axis=0)).max())
    if control < 4 * tolerance:
        raise WrongScores(f"items differ by {control:.2g} only: the comparison could not see a mistake")
    differences = {}
    for name, scores in results.items():
        if scores.shape != base.shape:
            raise WrongScores(f"{name} gives {scores.shape} scores, not {base.shape}")
        differences[name] = float(np.abs(scores - base).max())
        if not differences[name] <= tolerance:
            raise WrongScores(f"a score of {name} differs by {differences[name]:.2g} from ours")
    return differences


class Draws:
    """Draws the batches of each round: the same for all arms, different in every round."""

    def __init__(self, sizes: Sizes, vocabulary: int, calls: int) -> None:
        self._sizes, self._vocabulary, self._calls = sizes, vocabulary, calls
        self._next: dict[str, int] = {}

    def batches(self, round_: int) -> list[list[Ids]]:
        """The batches of a round."""
        rng, sizes = np.random.default_rng((self._calls, round_)), self._sizes
        return [
            draw(rng, sizes.shape, self._calls, self._vocabulary, sizes.labels) for _ in range(sizes.windows)
        ]

    def following(self, arm: str) -> list[list[Ids]]:
        """The batches of the arm's next round, starting with 1; round 0 is for checking."""
        self._next[arm] = self._next.get(arm, 0) + 1
        return self.batches(self._next[arm])


def window(name: str, peer: Peer, draws: Draws) -> float:
    """Milliseconds per call over a window of batches, one after another."""
    batches = draws.following(name)
    begin = time.perf_counter()
    for batch in batches:
        peer.scores(batch)
    return 1e3 * (time.perf_counter() - begin) / sum(map(len, batches))


def start(names: list[str], checkpoint: Path, device: str) -> tuple[dict[str, Peer], list[str], list[str]]:
    """Start peers: those that run, a line for each that cannot run here, and one for each that failed to start."""
    started: dict[str, Peer] = {}
    skipped, failures = [], []
    for name in names:
        try:
            started[name] = PEERS[name](checkpoint, device)
        except Unavailable as reason:
            skipped.append(f"{name}: {reason}")
            print(f"left out: {skipped[-1]}", flush=True)
        except Exception as error:  # one program's failure must not cost the others' results
            failures.append(f"{name} does not start: {type(error).__name__}: {error}"[:300])
            print(failed(failures[-1]), flush=True)
    return started, skipped, failures


def equal(
    peers: Mapping[str, Peer], calls: list[Ids], tolerance: float, failures: list[str]
) -> tuple[dict[str, Peer], dict[str, float]]:
    """The peers that give the first one's scores, and by how much they differ; others go to `failures`."""
    (base, ours), *others = peers.items()
    expected = ours.scores(calls)
    right, differences = {base: ours}, {base: 0.0}
    for name, peer in others:
        try:
            # The first call may compile; compare the second.
            peer.scores(calls)
            differences[name] = compare({base: expected, name: peer.scores(calls)}, tolerance)[name]
            right[name] = peer
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}"[:300])
            print(failed(failures[-1]), flush=True)
    return right, differences


def measure(
    peers: Mapping[str, Peer], sizes: Sizes, vocabulary: int, device: str, failures: list[str]
) -> Iterator[tuple[str, Any]]:
    """Check, warm up and time each load."""
    for load, calls in sizes.loads.items():
        draws = Draws(sizes, vocabulary, calls)
        (first, *_) = draws.batches(0)
        right, differences = equal(peers, first, TOLERANCES[device], failures)
        results = interleave(
            {name: partial(window, name, peer, draws) for name, peer in right.items()}, sizes.rounds
        )
        for name, result in results.items():
            print(f"{load:12s} {name:24s} {result.value!s} ms a call, x {result.ratio!s}", flush=True)
        yield (
            load,
            {
                "what": f"{calls} calls of {sizes.shape} a batch",
                "unit": "ms per call",
                "arms": {
                    name: asdict(result) | {"largest_difference": differences[name]}
                    for name, result in results.items()
                },
            },
        )


def main() -> int:
    """Measure; writes peers.json after every load."""
    options = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = GPU if device == "cuda" else CPU
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    options.out.mkdir(parents=True, exist_ok=True)
    with subject(device, options.checkpoint) as checkpoint:
        vocabulary = read_architecture(checkpoint)[0].vocab_size
        peers, skipped, failures = start(options.only, checkpoint, device)
        results: dict[str, Any] = {
            "machine": process_facts(options.commit),
            "what": f"Calls of {sizes.shape} tokens, in processes without a server, on {gpu or 'the CPU'}; the "
            "same ids and weights for all.",
            "skipped": skipped,
            "failures": failures,
            "groups": {},
        }
        sizes = Sizes(**{**vars(sizes), "rounds": options.rounds or sizes.rounds})
        try:
            for load, compared in measure(peers, sizes, vocabulary, device, failures):
                results["groups"][load] = compared
                write_json(options.out / "peers.json", results)
        finally:
            for peer in peers.values():
                peer.close()
            gc.collect()
    return 1 if failures else 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "peers.json")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--only", type=lambda text: text.split(";"), default=list(PEERS), help="names, by ';'"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - PEERS.keys():
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are: {'; '.join(PEERS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
