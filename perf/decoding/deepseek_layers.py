"""DeepSeek-V3.2 at its true widths, as many layers as fit: the time of a layer, and the ring beside blocking.

usage: python -m perf.decoding.deepseek_layers --out DIR [--ranks 1] [--routed N] [--arm-seconds 90]
           [--prompts 30] [--prompt 8192] [--tokens 1500]
           [--no-load] [--profile]

Weights are random, in fp8 with a scale for each 128x128 block, and are drawn on each GPU one by one while they are
loaded. Steps and prompts are timed with four numbers of layers: 1 and 3 without experts; these 3 and 1 with them;
these 3 and as many as fit. A layer's time is a difference, and the time of all 61 layers that of the most, plus
what is missing. Then 30 prompts are sent, five at once, in rounds of ten, to the ring and to blocking in turns;
rounds, and then tokens, are cut so that an arm takes no longer than --arm-seconds.

Random weights select tokens anew in every step, so hit rates are lower than trained ones. A step without the
copies from the host is timed, too: its tokens are wrong. Without a GPU a tiny model takes its place: a rehearsal
whose numbers mean nothing.
"""

import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.parallel.leader import lead
from perf.decoding.arms import Arm, device, dtype
from perf.decoding.closed_loop import ClosedLoop
from perf.decoding.deepseek_setup import GIB, Setup, routed_that_fit, sequence_bytes
from perf.decoding.layer_times import DENSE, LAYERS, Times, fitted, layer_times, summary
from perf.decoding.rank_arms import arms_of, callers_of, worker_of
from perf.decoding.worker_driver import Driver, unwatch_logits
from perf.machine.facts import process_facts
from perf.machine.interleave import in_turns
from perf.machine.kernel_times import kernel_times
from perf.models.geometries import PUBLISHED
from perf.script import arguments, write_json

PUBLISHED_MS = 32.07
"""Of a token, published for 8 GPUs of 4 TB/s."""
PROFILED, KERNELS = 20, 30
"""Steps that are profiled, and kernels that are reported."""


def times_of(setup: Setup, arm: Arm, steps: int) -> Times:
    """Time some steps, and prompts alone."""
    vocabulary, rng = setup.config["vocab_size"], np.random.default_rng(0)
    at_once, prompt = setup.load.at_once, setup.load.prompt
    shape = worker_of(setup.leader, arm)._cache.shape
    with callers_of(setup.leader, arm) as (_, callers):
        callers.run(ClosedLoop(1, 1, prompt, 8), vocabulary, rng)
        alone = callers.run(ClosedLoop(3, 1, prompt, 2), vocabulary, rng)
        # They begin one after another, as their prompts are prefilled.
        callers.run(ClosedLoop(at_once, at_once, prompt, steps), vocabulary, rng)
        begin, end = callers.together
    count = max(end.steps - begin.steps, 1)
    hits, misses = end.hits - begin.hits, end.misses - begin.misses
    return Times(
        step_ms=1e3 * (end.step_seconds - begin.step_seconds) / count,
        prompt_ms=alone["ttft_p50_ms"],
        hit_rate=hits / max(hits + misses, 1),
        swap_in_mib=misses * shape.head_dim * dtype().itemsize / count / 2**20,
        gib=torch.cuda.memory_allocated() / GIB if torch.cuda.is_available() else 0.0,
    )


def compare(setup: Setup, arms: Sequence[Arm], load: ClosedLoop, rounds: int) -> dict[str, Any]:
    """Send the load to arms in turns: milliseconds between tokens, over all rounds."""
    vocabulary = setup.config["vocab_size"]
    gaps: dict[str, list[float]] = {arm.name: [] for arm in arms}
    undisturbed: dict[str, list[float]] = {arm.name: [] for arm in arms}
    runs: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    by_name = {arm.name: arm for arm in arms}
    gc.collect()
    gc.freeze()  # as the model does after its start
    for index, name in in_turns(by_name, rounds):
        with callers_of(setup.leader, by_name[name]) as (engine, callers):
            runs[name].append(callers.run(load, vocabulary, np.random.default_rng(index)))
            stats = engine.stats()
            runs[name][-1] |= {"step_ms": 1e3 * stats.step_seconds / stats.steps}
            gaps[name] += callers.gaps()
            undisturbed[name] += callers.gaps(undisturbed=True)
    gc.unfreeze()
    found: dict[str, Any] = {
        name: {
            "between_ms": summary(gaps[name]),
            "between_ms_while_none_is_prefilled": summary(undisturbed[name]),
            "rounds": runs[name],
        }
        for name in by_name
    }
    return found


def profile(setup: Setup, checkpoint: Path, arm: Arm) -> dict[str, Any]:
    """Kernels of a prompt and of a step, the longest first; microseconds and launches."""
    worker, drivers = worker_of(setup.leader, arm), list[Driver]()

    def begin() -> None:
        drivers.append(Driver.of_random(worker, checkpoint, [setup.load.prompt]))

    prompt = kernel_times(begin)
    drivers.pop().release()
    driver = Driver.of_random(worker, checkpoint, [setup.load.prompt] * setup.load.at_once)
    driver.steps(8)
    step = kernel_times(lambda: driver.steps(PROFILED), PROFILED)
    driver.release()
    # A driver keeps the logits of all steps.
    unwatch_logits(worker)
    return {name: [each._asdict() for each in found[:KERNELS]] for name, found in
            (("prompt", prompt), ("step", step))}  # fmt: skip


def main() -> int:
    """Measure; writes deepseek_layers.json after every part."""
    rehearsal = device().type != "cuda"
    parser = arguments(__doc__, "deepseek_layers.json")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that compute the model together")
    parser.add_argument("--routed", type=int, help="layers with experts, at least 2; default: those that fit")
    parser.add_argument("--spare-gib", type=float, default=14.0, help="of a GPU, for all but weights")
    parser.add_argument("--arm-seconds", type=float, default=5.0 if rehearsal else 90.0)
    parser.add_argument("--prefill-tokens", type=int, help="of a forward; default: as the product has it")
    parser.add_argument("--prompts", type=int, default=4 if rehearsal else 30)
    parser.add_argument("--prompt", type=int, default=200 if rehearsal else 8_192)
    parser.add_argument("--tokens", type=int, default=8 if rehearsal else 1_500)
    parser.add_argument("--at-once", type=int, default=2 if rehearsal else 5)
    parser.add_argument(
        "--steps", type=int, default=16 if rehearsal else 120, help="that are timed of a layer"
    )
    parser.add_argument("--no-load", action="store_true", help="time layers only")
    parser.add_argument("--profile", action="store_true", help="list kernels, too; one rank")
    options = parser.parse_args()
    load = ClosedLoop(options.prompts, options.at_once, options.prompt, options.tokens)
    top_k = 64 if rehearsal else 2_048
    where = [torch.device("cuda", rank) if not rehearsal else device() for rank in range(options.ranks)]
    leader = lead(where)
    with tempfile.TemporaryDirectory() as directory:
        setup = Setup(
            PUBLISHED["tiny-deepseek" if rehearsal else "deepseek-v3.2"],
            leader,
            Path(directory),
            {
                "selector": "dsa", "sparse_top_k": top_k, "device_buffer_size": 2 * top_k,
            },
            load,
            options.prefill_tokens,
        )  # fmt: skip
        routed = options.routed or (2 if rehearsal else routed_that_fit(setup, options.spare_gib))
        results: dict[str, Any] = {
            "machine": process_facts(options.commit), "ranks": options.ranks, "settings": setup.settings,
            "layers": {"without experts": DENSE, "with experts": routed}, "load": asdict(load),
            "sequence": sequence_bytes(setup), "published_ms": PUBLISHED_MS,
        }  # fmt: skip
        keep = partial(write_json, options.out / f"deepseek_layers-{options.ranks}.json", results)
        try:
            measure(setup, routed, options, results, keep)
        finally:
            leader.close()
    return 0


def measure(setup: Setup, routed: int, options: Any, results: dict[str, Any], keep: Any) -> None:
    """Time a few layers, then most of them, then the load."""
    ring, few = setup.arm("ring"), {}
    started = time.perf_counter()
    for dense, experts in ((1, 0), (DENSE, 0), (DENSE, 1)):
        checkpoint = setup.checkpoint(dense, experts)
        with arms_of(setup.leader, checkpoint, [ring], setup.memory, setup.prefill_tokens):
            few[str(dense + experts)] = times_of(setup, ring, options.steps)
        _print_times(f"{dense} + {experts} layers", few[str(dense + experts)], started)
    results["few"] = {count: asdict(times) for count, times in few.items()}
    keep()
    arms = [ring, setup.arm("blocking")]
    floor = [setup.arm("ring", "swap-in")] if device().type == "cuda" else []
    checkpoint = setup.checkpoint(DENSE, routed)
    with arms_of(setup.leader, checkpoint, [*arms, *floor], setup.memory, setup.prefill_tokens):
        print(f"{DENSE} + {routed} layers are loaded after {time.perf_counter() - started:.0f} s", flush=True)
        most = times_of(setup, ring, options.steps)
        _print_times(f"{DENSE} + {routed} layers", most, started)
        results["most"] = asdict(most)
        for arm in floor:
            results["without swap-in"] = asdict(without := times_of(setup, arm, options.steps))
            _print_times("without swap-in", without, started)
            found_ms = (most.step_ms - without.step_ms) / (DENSE + routed)
            results["swap-in of a layer, ms"] = found_ms
            print(f"of a layer's step, the copies from the host take {found_ms:.3f} ms")
        results["layer"] = found = layer_times(few, most, routed)
        keep()
        _print_layers(found, setup.load.prompt)
        if options.profile and options.ranks == 1 and device().type == "cuda":
            results["kernels"] = profile(setup, checkpoint, ring)
            keep()
        if options.no_load:
            return
        load, rounds = fitted(setup.load, most, options.arm_seconds)
        print(f"{rounds} rounds of {load.count} prompts: {load}", flush=True)
        results["arms"] = {"load": asdict(load), "rounds": rounds, **compare(setup, arms, load, rounds)}
        keep()
        for arm in arms:
            of_arm = results["arms"][arm.name]
            for which in ("between_ms", "between_ms_while_none_is_prefilled"):
                ms = of_arm[which]
                print(
                    f"{arm.name:9s} {which}: mean {ms['mean']:.3f}, p50 {ms['p50']:.3f}, p99 {ms['p99']:.3f}"
                )
        print(f"after {time.perf_counter() - started:.0f} s", flush=True)


def _print_times(what: str, times: Times, started: float) -> None:
    print(
        f"{what}: step {times.step_ms:.3f} ms, prompt {times.prompt_ms:.1f} ms, "
        f"hit rate {times.hit_rate:.3f}, {times.swap_in_mib:.1f} MiB swapped in, {times.gib:.1f} GiB; "
        f"after {time.perf_counter() - started:.0f} s",
        flush=True,
    )


def _print_layers(found: dict[str, Any], prompt: int) -> None:
    for name, parts in found.items():
        print(f"{name}: " + ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items()))
    print(
        f"a token of {LAYERS} layers {found['step_ms']['all']:.2f} ms (published: {PUBLISHED_MS}), "
        f"prefill {1e3 * prompt / found['prompt_ms']['all']:,.0f} tokens/s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
