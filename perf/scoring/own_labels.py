"""What labels of their own cost: 400 items with 2 to 255 labels each against the same items with two shared ones.

usage: python -m perf.scoring.own_labels --out DIR [--rounds N]

Weights are random, with Qwen3-0.6B's geometry, on one GPU: the GPU's time for a forward, the host's for a call in
this process, and a call's at a server over gRPC, in turns. Exits with 1 if a decision's items cost more than 5% at
the server. Without a GPU a tiny model is served, as a rehearsal.
"""

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore_client import ScoreClient
from perf.loadgen.api_calls import Ids
from perf.loadgen.served import limit_threads, server_settings
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.machine.interleave import interleave
from perf.models import checkpoints
from perf.script import arguments, write_json

TARGET = 0.05
LEAST, MOST = 2, 255
# Ids that the tiny model has, too.
VOCABULARY = 300


@dataclass(frozen=True)
class Shape:
    """One call: tokens of its query, items, and tokens of each."""

    query: int
    items: int
    item: int

    def __str__(self) -> str:
        return f"{self.query} + {self.items} x {self.item}"


# A decision's state and questions, for which the target stands; and the items that cost least by themselves.
SHAPES = (Shape(1_000, 400, 40), Shape(50, 400, 2))


def make_calls(rng: np.random.Generator, shape: Shape) -> dict[str, Ids]:
    """The same items with two shared labels, and with labels of their own."""
    query = rng.integers(10, VOCABULARY, shape.query).tolist()
    items = rng.integers(10, VOCABULARY, (shape.items, shape.item)).tolist()
    counts = rng.integers(LEAST, MOST, shape.items, endpoint=True).tolist()
    labels = [int(label) for count in counts for label in rng.choice(VOCABULARY, count, replace=False)]
    return {"shared": Ids(query, items, [5, 6]), "own": Ids(query, items, labels, counts)}


def as_request(ids: Ids) -> ScoreRequest:
    """The call as the scorer takes it."""
    tokens = np.array([*ids.query, *(token for item in ids.items for token in item)], np.int32)
    prompt = MultiItemPrompt(tokens, len(ids.query), np.array([len(item) for item in ids.items]))
    counts = None if ids.label_counts is None else tuple(ids.label_counts)
    return ScoreRequest.of(prompt, np.array(ids.labels, np.int32), ScoreOptions(True, label_counts=counts))


def in_turns(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Milliseconds of each arm, and what labels of their own cost beside shared ones."""
    for run in arms.values():
        for _ in range(3):
            run()
    found = interleave(arms, rounds)
    return {
        **{name: {"ms": asdict(arm.value)} for name, arm in found.items()},
        "cost": found["own"].ratio.median - 1,
    }


def in_process(checkpoint: Path, calls: Mapping[str, Mapping[str, Ids]], rounds: int) -> dict[str, Any]:
    """Of each shape, the GPU's time of a forward and the host's of a call."""
    from hiscore.scoring.scorer import Scorer
    from perf.scoring.forward import gpu_ms, host_ms

    scorer = Scorer(checkpoint, "cuda", max_batch_tokens=20_480, query_cache_bytes=0)
    results: dict[str, Any] = {}
    for shape, arms in calls.items():
        batches = {name: [as_request(ids)] for name, ids in arms.items()}
        results[shape] = {
            "gpu": in_turns({n: lambda b=b: gpu_ms(scorer, [b]) for n, b in batches.items()}, rounds),  # type: ignore[misc]
            "host": in_turns({n: lambda b=b: host_ms(scorer, [b])[1] for n, b in batches.items()}, rounds),  # type: ignore[misc]
        }
    return results


def served(url: str, calls: Mapping[str, Mapping[str, Ids]], rounds: int) -> dict[str, Any]:
    """Of each shape, a call's time at the server."""
    client = ScoreClient(url)
    # Numbers of Python's would be converted in the time that is measured.
    labels = {id(ids): np.array(ids.labels, np.int32) for arms in calls.values() for ids in arms.values()}

    def once(ids: Ids) -> float:
        start = time.perf_counter()
        client.score_ids(
            ids.query, ids.items, labels[id(ids)], label_counts=ids.label_counts, apply_softmax=True
        )
        return 1e3 * (time.perf_counter() - start)

    def several(ids: Ids) -> float:
        return statistics.median(once(ids) for _ in range(3))

    return {
        shape: in_turns({name: lambda ids=ids: several(ids) for name, ids in arms.items()}, rounds)  # type: ignore[misc]
        for shape, arms in calls.items()
    }


def main() -> int:
    """Serve and measure; writes own_labels.json."""
    logging.basicConfig(level=logging.WARNING)
    parser = arguments(__doc__, "own_labels.json and server.log")
    parser.add_argument("--rounds", type=int, help="turns of each")
    options = parser.parse_args()
    device, _ = choose_device("auto")
    limit_threads(device)
    on_gpu = device != "cpu"
    rounds = options.rounds or (15 if on_gpu else 2)
    shapes = SHAPES if on_gpu else (Shape(5, 20, 2),)
    rng = np.random.default_rng(0)
    calls = {str(shape): make_calls(rng, shape) for shape in shapes}
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    results: dict[str, Any] = {"in_process": {}}
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        checkpoints.write(Path(directory), device, None)
        if on_gpu:
            results["in_process"] = in_process(Path(directory), calls, rounds)
        settings = server_settings(model=directory, models="scorer", query_cache_bytes=0)
        with Server(settings, options.out / "server.log") as server:
            results["served"] = served(server.grpc_url, calls, rounds)
            triton = triton_version(server.http_url)
    for where, found in {"server": results["served"], **_by_clock(results["in_process"])}.items():
        for shape, each in found.items():
            print(
                f"{shape:18s} {where:7s} shared {each['shared']['ms']['median']:8.3f} ms, own "
                f"{each['own']['ms']['median']:8.3f}: {each['cost']:+.1%}",
                flush=True,
            )
    results |= {
        "labels": [LEAST, MOST],
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
        "seconds": time.perf_counter() - begin,
    }
    write_json(options.out / "own_labels.json", results)
    cost = results["served"][str(shapes[0])]["cost"]
    print(
        f"labels of their own cost {cost:+.1%} at the server for {shapes[0]} (target: at most {TARGET:.0%})"
    )
    return int(on_gpu and cost > TARGET)


def _by_clock(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    clocks = ("gpu", "host") if found else ()
    return {clock: {shape: each[clock] for shape, each in found.items()} for clock in clocks}


if __name__ == "__main__":
    sys.exit(main())
