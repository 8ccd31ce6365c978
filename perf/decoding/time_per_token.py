"""Time per token of decoding in one process, by offload protocol and selector, and what the copies cost.

usage: python -m perf.decoding.time_per_token --out DIR [--geometry qwen3-0.6b] [--groups backup,swap,selectors]
           [--rounds 5] [--prompt 8192] [--tokens 300] [--streams 5]

Weights are random, with a real model's geometry. The arms of a group stay in memory side by side and take turns: a
round runs every arm once, with the same prompts. Printed are medians over rounds, and ratios to the group's first
arm within a round. Without a GPU a tiny model takes its place, as a rehearsal whose numbers mean nothing.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from perf.decoding.arms import Arm, Unavailable, shared_weights
from perf.decoding.engine_load import Bench, Load, Run
from perf.machine.facts import process_facts
from perf.machine.interleave import in_turns, spread
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, described, failed, write_json

QUEST = {"selector": "quest"}
DEFERRED = {"backup_ring": 1}
"""A step waits for the copy of the step before."""
SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "logprobs 5": {"logprobs": 5},
}


def swap_in_arms(top_k: int, buffer: int, selector: str) -> list[Arm]:
    """A selector with and without its copies from the host."""
    settings = {"selector": selector, "sparse_top_k": top_k, "device_buffer_size": buffer}
    name = f"{selector} {top_k} of {buffer}"
    return [Arm(name, settings), Arm(f"{name}, no swap-in", settings, "swap-in")]


def groups(family: str, load: Load) -> dict[str, list[Arm]]:
    """Arms by group.

    Args:
        family: `grouped` (keys and values by head) or `latent`.
        load: Its prompts decide how many tokens are selected.
    """
    dense = {"selector": "dense"}
    # Rehearsals have short prompts, so they select fewer tokens.
    sizes = (2_048, 1_024, 512) if load.prompt > 4_096 else (64,)
    own = "quest" if family == "grouped" else "dsa"
    return {
        "backup": [
            Arm("ring", dense),
            Arm("blocking", dense | DEFERRED, blocking=True),
            Arm("deferred", dense | DEFERRED),
            Arm("no backup", dense, "backup"),
        ],
        "sparse protocols": [
            Arm(f"{own}, ring", _sized(own, sizes[0])),
            Arm(f"{own}, blocking", _sized(own, sizes[0]) | DEFERRED, blocking=True),
            Arm(f"{own}, deferred", _sized(own, sizes[0]) | DEFERRED),
            Arm(f"{own}, no backup", _sized(own, sizes[0]), "backup"),
        ],
        **{f"swap-in, top {top}": swap_in_arms(top, 2 * top, own) for top in sizes},
        f"swap-in, tight {sizes[0]}": swap_in_arms(sizes[0], sizes[0] * 9 // 8, own),
        "sampling": [Arm(name, dense, sampling=given) for name, given in SAMPLING.items()],
        "selectors": [Arm("dense", dense), Arm(own, _sized(own, sizes[0]))],
    }


def _sized(selector: str, top_k: int) -> dict[str, object]:
    return {"selector": selector, "sparse_top_k": top_k, "device_buffer_size": 2 * top_k}


COLUMNS = ("tpot_ms", "itl_p99_ms", "step_ms", "hit_rate", "swap_in_mib", "captured")


@dataclass(frozen=True)
class Options:
    """The command line."""

    out: Path
    commit: str | None
    geometry: str
    groups: tuple[str, ...]
    rounds: int
    load: Load


def compare(checkpoint: Path, arms: Sequence[Arm], load: Load, rounds: int) -> dict[str, Any]:
    """Run arms in turns; one that this machine cannot measure is left out, with a line that says why."""
    benches: dict[str, Bench] = {}
    try:
        for arm in arms:
            try:
                benches[arm.name] = Bench(checkpoint, arm, load)
            except Unavailable as reason:
                print(f"  {arm.name}: {reason}", flush=True)
        runs: dict[str, list[Run]] = {name: [] for name in benches}
        for bench in benches.values():
            bench.run(load=replace(load, tokens=min(load.tokens, 20)))
        for index, name in in_turns(benches, rounds):
            runs[name].append(benches[name].run(seed=index))
        held = {name: bench.device_bytes for name, bench in benches.items()}
        loads = {name: bench.load_s for name, bench in benches.items()}
    finally:
        for bench in benches.values():
            bench.close()
    return summarise(runs, held, loads)


def summarise(
    runs: dict[str, list[Run]], held: dict[str, dict[str, int]], loads: dict[str, float]
) -> dict[str, Any]:
    """Medians over rounds, and ratios of the time per token to the first arm's.

    Args:
        held: Bytes on the device by tensor, by arm.
        loads: Seconds to load, by arm.
    """
    found: dict[str, Any] = {}
    first = next(iter(runs.values()))
    for name, of_arm in runs.items():
        rows = [asdict(run) for run in of_arm]
        ratios = [run.tpot_ms / base.tpot_ms for base, run in zip(first, of_arm, strict=True)]
        found[name] = {
            **{key: statistics.median(row[key] for row in rows) for key in rows[0]},
            "ratio": asdict(spread(ratios)),
            "rounds_tpot_ms": [run.tpot_ms for run in of_arm],
            "device_bytes": held[name],
            "load_s": loads[name],
        }
    return found


def show(found: dict[str, Any]) -> None:
    """Print a line for each arm."""
    print(f"  {'':28s}" + "".join(f"{column:>12s}" for column in COLUMNS) + "   ratio")
    for name, row in found.items():
        ratio = "{median:.4f} [{low:.4f}, {high:.4f}]".format(**row["ratio"])
        print(
            f"  {name:28s}" + "".join(f"{row[column]:12.4g}" for column in COLUMNS) + f"   {ratio}",
            flush=True,
        )


def main(options: Options) -> int:
    """Measure; writes decode-GEOMETRY.json after every group."""
    family = "latent" if GEOMETRIES[options.geometry]["model_type"] in LATENT else "grouped"
    chosen = {
        name: arms
        for name, arms in groups(family, options.load).items()
        if any(part in name for part in options.groups)
    }
    if not chosen:
        print(f"no group is called {' or '.join(options.groups)}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "geometry": options.geometry,
        "load": asdict(options.load),
        "rounds": options.rounds,
        "groups": {},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    code = 0
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(options.geometry, Path(directory), options.load.context)
        for name, arms in chosen.items():
            print(f"{options.geometry}, {name}:", flush=True)
            started = time.perf_counter()
            try:
                found = compare(checkpoint, arms, options.load, options.rounds)
                show(found)
                results["groups"][name] = found
            except Exception as error:  # one group's failure must not cost the others' results
                code = 1
                results["groups"][name] = {"error": described(error)}
                print(f"  {failed(described(error))}", flush=True)
            print(f"  {time.perf_counter() - started:.1f} s", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            write_json(options.out / f"decode-{options.geometry}.json", results)
    return code


def parse() -> Options:
    """Parse the command line; without a GPU the defaults are a rehearsal's."""
    rehearsal = not torch.cuda.is_available()
    parser = arguments(__doc__, "decode-GEOMETRY.json")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="tiny" if rehearsal else "qwen3-0.6b")
    parser.add_argument("--groups", default="backup,swap-in,selectors", help="parts of the groups' names")
    parser.add_argument("--rounds", type=int, default=2 if rehearsal else 5)
    parser.add_argument("--prompt", type=int, default=300 if rehearsal else 8_192)
    parser.add_argument("--tokens", type=int, default=20 if rehearsal else 300)
    parser.add_argument("--streams", type=int, default=3 if rehearsal else 5)
    given = parser.parse_args()
    load = Load(given.streams, given.prompt, given.tokens)
    return Options(
        given.out, given.commit, given.geometry, tuple(given.groups.split(",")), given.rounds, load
    )


if __name__ == "__main__":
    sys.exit(main(parse()))
