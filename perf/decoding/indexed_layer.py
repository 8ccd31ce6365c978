"""A layer with an indexer: tokens/s of its prefill, and its share of a decode step.

usage: python -m perf.decoding.indexed_layer --out DIR [--geometry deepseek-v3.2-cut] [--prompts 4096,16384,32768]
           [--streams 1,5] [--rounds 5]

Prefill alone, in less than a minute on a GPU: --prompts 4096,16384 --streams 0 --rounds 3. With --whole rows
attend to all tokens: with latents absorbed, and with keys and values expanded.

Weights are random, with a real model's widths. A prompt runs through all layers in chunks, without the last
one's MLP and the head; its time is divided by their number. So is a step's, which has both. Arms take turns.
Without a GPU a tiny model takes its place, and kernels run in Triton's interpreter: a rehearsal whose numbers mean
nothing.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    # It is read when a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"

from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.worker.build import prefill_token_budget
from hiscore.models.deepseek.activations import SCORE_ELEMENTS
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment, StagedLatents
from hiscore.models.deepseek.latent_cache_triton import KernelLatents
from perf.decoding.arms import PLENTY, Arm, build_worker, device, dtype, shared_weights
from perf.decoding.engine_load import Load
from perf.decoding.worker_driver import Driver
from perf.machine.facts import process_facts
from perf.machine.interleave import ArmResult, interleave
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES, LATENT
from perf.script import arguments, by_comma, write_json


@dataclass(frozen=True)
class Prefill:
    """An arm: what computes a prompt, and what its rows attend to."""

    how: str
    full: bool = False
    """To everything, as under SELECTOR=dense."""
    expands: bool = True
    """Whether keys and values are expanded; else latents are absorbed."""


PREFILLS = {
    "torch": Prefill("torch"),
    "kernels": Prefill("kernels"),
}
WHOLE = {
    "all tokens, absorbed": Prefill("kernels", full=True, expands=False),
    "all tokens, expanded": Prefill("kernels", full=True),
}


def prefill_s(decoder: DsaDecoder, staged: StagedLatents, length: int, chunk: int, arm: Prefill) -> float:
    """Seconds to run a prompt through all layers.

    Args:
        decoder: With its weights.
        staged: Of `length` slots at least.
        length: Tokens.
        chunk: Tokens of a forward at most.
        arm: What rows attend to.
    """
    where = decoder.device
    ids = torch.randint(decoder.architecture.vocab_size, (length,), device=where).int()
    slots, positions = torch.arange(length, device=where), torch.arange(length, device=where).int()
    _synchronize()
    started = time.perf_counter()
    with torch.inference_mode():
        for begin in range(0, length, chunk):
            end = min(begin + chunk, length)
            staged.plan([Segment(slots[:end], end - begin, arm.full)])
            decoder.body(ids[begin:end], positions[begin:end], staged)
    _synchronize()
    return time.perf_counter() - started


@cache
def loaded(checkpoint: Path, context: int) -> DsaDecoder:
    """A decoder, which all cases share."""
    return DsaDecoder(checkpoint, device(), dtype(), context)


def prefills(
    checkpoint: Path, context: int, length: int, chunk: int, rounds: int, kinds: Mapping[str, Prefill]
) -> dict[str, ArmResult]:
    """Milliseconds of a layer for a prompt, by arm."""
    arms: dict[str, Callable[[], float]] = {}
    for name, arm in kinds.items():
        decoder = loaded(checkpoint, context)
        a = decoder.architecture
        if arm.how == "kernels":
            staged: StagedLatents = KernelLatents(
                a, length, device(), dtype(), max_elements=SCORE_ELEMENTS, expands=arm.expands
            )
        else:
            elements = 2**28 if device().type == "cuda" else MAX_ELEMENTS
            staged = StagedLatents(a, length, device(), dtype(), max_elements=elements)
        run = partial(prefill_s, decoder, staged, length, chunk, arm)
        # Compiles the kernels.
        run()
        arms[name] = lambda run=run, layers=a.layers: 1e3 * run() / layers  # type: ignore[misc]
    return interleave(arms, rounds)


def steps(checkpoint: Path, load: Load, layers: int, top_k: int, rounds: int) -> dict[str, ArmResult]:
    """Milliseconds of a layer for a step."""
    sizes = {"sparse_top_k": top_k, "device_buffer_size": 2 * top_k}
    arm = Arm("steps", {"selector": "dsa"} | sizes)
    worker = build_worker(checkpoint, arm, MemoryBudget(PLENTY, PLENTY, load.streams))
    driver = Driver.of_random(worker, checkpoint, [load.prompt] * load.streams)
    driver.steps(2)
    count = max(1, (load.tokens - 2) // rounds)
    return interleave({arm.name: lambda: driver.steps(count) / layers}, rounds)


def _synchronize() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    """Measure; writes indexed_layer-GEOMETRY.json after every case."""
    rehearsal = device().type != "cuda"
    parser = arguments(__doc__, "indexed_layer-GEOMETRY.json")
    latent = [name for name, config in GEOMETRIES.items() if config["model_type"] in LATENT]
    parser.add_argument(
        "--geometry", choices=latent, default="tiny-dsa" if rehearsal else "deepseek-v3.2-cut"
    )
    parser.add_argument("--prompts", default="66" if rehearsal else "4096,16384,32768")
    parser.add_argument("--streams", default="1" if rehearsal else "1,5", help="0: no steps are timed")
    parser.add_argument(
        "--whole", action="store_true", help="prefill that attends to all tokens, in two ways"
    )
    parser.add_argument("--rounds", type=int, default=1 if rehearsal else 5)
    parser.add_argument("--tokens", type=int, default=8 if rehearsal else 200, help="of a stream's steps")
    options = parser.parse_args()
    kinds = WHOLE if options.whole else PREFILLS
    config = random_checkpoint.config_of(options.geometry)
    layers, top_k = config["num_hidden_layers"], config["index_topk"]
    prompts, streams = ([int(each) for each in by_comma(x)] for x in (options.prompts, options.streams))
    context = Load(1, max(prompts), options.tokens).context
    name_of_file = f"indexed_layer-{options.geometry}{'-whole' if options.whole else ''}.json"
    results: dict[str, Any] = {
        "machine": process_facts(options.commit), "geometry": options.geometry, "layers": layers,
        "rounds": options.rounds, "prefill_ms": {}, "step_ms": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(options.geometry, Path(directory), context)
        chunk = prefill_token_budget(checkpoint, device())
        for prompt in prompts:
            found = prefills(checkpoint, context, prompt, chunk, options.rounds, kinds)
            for name, arm in found.items():
                print(
                    f"prefill of {prompt} tokens, {name}: {arm.value} ms a layer, "
                    f"{1e3 * prompt / arm.value.median:,.0f} tokens/s; ratio {arm.ratio}",
                    flush=True,
                )
            results["prefill_ms"][prompt] = {name: asdict(arm) for name, arm in found.items()}
            for count in filter(None, streams):
                load = Load(count, prompt, options.tokens)
                found = steps(checkpoint, load, layers, top_k, options.rounds)
                for name, arm in found.items():
                    print(
                        f"step of {count} x {prompt} tokens, {name}: {arm.value} ms a layer; ratio {arm.ratio}",
                        flush=True,
                    )
                results["step_ms"][f"{count} x {prompt}"] = {name: asdict(arm) for name, arm in found.items()}
            write_json(options.out / name_of_file, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
