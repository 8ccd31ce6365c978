"""The gated MLP kernel on a Hopper GPU, against cuBLAS and the activation after it, at the served sizes."""

import pytest
import torch

from hiscore.kernels import gated_mlp
from hiscore.layers import triton_ops
from hiscore.layers.ops import Ops
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import Linear

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = pytest.mark.skipif(not IS_HOPPER, reason="written for GPUs of compute capability 9")

SIZES = {
    "Qwen3-0.6B": (1024, 3072),
    "SmolLM2-135M": (576, 1536),
    "Qwen3-1.7B": (2048, 6144),
    "Qwen3-8B": (4096, 12288),
}


@pytest.mark.parametrize("rows", [1, 320, 1280, 1920, 5120])
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("name", SIZES)
def test_it_gives_what_two_steps_give(name: str, activation: str, rows: int) -> None:
    """Both sum in float32 and round alike: what differs is the order of sums, in a rounding of few numbers."""
    assert triton_ops.hopper_sm_count()
    inputs, outputs = SIZES[name]
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator, device="cuda").bfloat16()
    weight = torch.randn(2 * outputs, inputs, generator=generator, device="cuda").bfloat16() / inputs**0.5
    ops = TritonOps(1, 1, 2, 1e-6, activation)
    expected = ops.activate(torch.nn.functional.linear(x, weight))
    exact = Ops(1, 1, 2, 1e-6, activation).gate(Linear(weight.float()), x.float())
    for tile in (gated_mlp.SMALL, gated_mlp.MEDIUM, gated_mlp.LARGE):
        found = gated_mlp.multiply(x, weight, activation != "silu", tile, triton_ops.hopper_sm_count())
        assert (found == expected).float().mean() > 0.99
        assert (found - exact).square().mean() <= 1.01 * (expected - exact).square().mean()
        torch.testing.assert_close(found, expected, atol=2**-6, rtol=2**-6)
        # Every tile forms its sums in one order: no bit of a row depends on how many there are.
        some = gated_mlp.multiply(
            x[: -(-rows // 3)], weight, activation != "silu", tile, triton_ops.hopper_sm_count()
        )
        assert torch.equal(some, found[: len(some)])
        # Control: gate and up in each other's place.
        wrong = gated_mlp.multiply(
            x, weight.roll(outputs, 0), activation != "silu", tile, triton_ops.hopper_sm_count()
        )
        assert (wrong == expected).float().mean() < 0.1
