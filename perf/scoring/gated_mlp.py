"""The MLP's gate, up and activation: our fused kernel by tile size, against a library product and an activation.

usage: python -m perf.scoring.gated_mlp [--models qwen3-0.6b,...] [--out DIR]        (one CUDA GPU)

Microseconds per layer, from CUDA graphs over layers with weights of their own, which take turns: so all have the
clock that a loaded GPU keeps. The outputs of every tile size are compared with those of the two separate steps.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hiscore.kernels.gated_mlp import LARGE, MEDIUM, SMALL, Tile, multiply, tile_for
from hiscore.layers.triton_ops import TritonOps
from hiscore.prefill.row_counts import capture_sizes
from perf.machine.facts import process_facts
from perf.machine.graph_timer import in_turns
from perf.script import arguments, by_comma, write_json

# Hidden size and intermediate size.
MODELS = {
    "smollm2-135m": (576, 1536),
    "qwen3-0.6b": (1024, 3072),
    "qwen3-1.7b": (2048, 6144),
    "qwen3-4b": (2560, 9728),
    "qwen3-8b": (4096, 12288),
}
TILES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}
WEIGHTS_BYTES = 400 << 20
"""Weights of all layers together, more than an L2 cache holds."""


def measure(inputs: int, outputs: int, rows: int, multiprocessors: int) -> dict[str, object]:
    """Microseconds by implementation, and which one the product chooses."""
    layers = max(2, min(28, WEIGHTS_BYTES // (4 * inputs * outputs)))
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    weights = [
        torch.randn(2 * outputs, inputs, device="cuda").bfloat16() / inputs**0.5 for _ in range(layers)
    ]
    ops = TritonOps(1, 1, 2, 1e-6, "silu")

    def library(weight: Tensor) -> Tensor:
        activated = ops.activate(torch.nn.functional.linear(x, weight))
        assert isinstance(activated, Tensor)
        return activated

    expected = library(weights[0])
    arms: dict[str, Callable[[Tensor], Tensor]] = {"library": library}
    same: dict[str, object] = {}
    for name, tile in TILES.items():
        if tile is SMALL and rows > 1024:
            continue

        def ours(weight: Tensor, tile: Tile = tile) -> Tensor:
            return multiply(x, weight, False, tile, multiprocessors)

        output = ours(weights[0])
        # Sums in another order round differently now and then.
        torch.testing.assert_close(output, expected, atol=2**-6, rtol=2**-6)
        arms[name] = ours
        same[f"{name}: same bits"] = torch.equal(output, expected)
    measured = same | in_turns({name: [partial(arm, each) for each in weights] for name, arm in arms.items()})
    taken = tile_for(rows, inputs, outputs, multiprocessors)
    measured["taken"] = next((name for name, tile in TILES.items() if tile is taken), "library")
    return measured


def main() -> None:
    """Measure; writes gated_product.json after every model."""
    parser = arguments(__doc__, "gated_product.json", required=False)
    parser.add_argument("--models", type=by_comma, default=list(MODELS), help="by comma")
    options = parser.parse_args()
    multiprocessors = torch.cuda.get_device_properties("cuda").multi_processor_count
    results: dict[str, object] = {"machine": process_facts(options.commit)}
    for model in options.models:
        of_model = results[model] = {
            rows: measure(*MODELS[model], rows, multiprocessors) for rows in capture_sizes(16_384)
        }
        for rows, measured in of_model.items():
            times = ", ".join(f"{name} {us:.1f}" for name, us in measured.items() if isinstance(us, float))
            print(f"{model} {rows}: {times}; {measured['taken']} is taken", flush=True)
        if options.out:
            write_json(options.out / "gated_product.json", results)


if __name__ == "__main__":
    main()
