"""Products in fp8 of DeepSeek-V3.2's widths, on a GPU: against PyTorch, and each row by itself."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hiscore.layers import scaled_fp8
from hiscore.layers.fp8 import FP8, FP8_CAPABILITY
from hiscore.layers.moe import looped
from hiscore.layers.weights import Experts, Routing, Scales

HAS_FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_FP8, reason="no CUDA GPU that computes in fp8")]

moe_triton = pytest.importorskip("hiscore.layers.moe_triton", reason="the Triton language is not installed")
scaled_fp8_triton = pytest.importorskip("hiscore.layers.scaled_fp8_triton")

HIDDEN, WIDTH, COUNT, PER_TOKEN = 7_168, 2_048, 16, 8


def weight(*shape: int, seed: int) -> tuple[Tensor, Scales]:
    generator = torch.Generator("cuda").manual_seed(seed)
    *before, outputs, inputs = shape
    # float8 has no random numbers of its own.
    values = (torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16) * 64).to(FP8)
    blocks = torch.full((*before, -(-outputs // 128), inputs // 128), 2.0**-12, device="cuda")
    doubled = torch.rand(blocks.shape, generator=generator, device="cuda") < 0.5
    return values, Scales(torch.where(doubled, 2 * blocks, blocks), 128, 128, powers_of_two=True)


def rows(count: int, seed: int = 7) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, HIDDEN, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("count", [1, 16, 17, 300])
@pytest.mark.parametrize("outputs", [2_112, 128, 4_096])
def test_a_product_equals_pytorch(count: int, outputs: int) -> None:
    values, scales = weight(outputs, HIDDEN, seed=1)
    x = rows(count)
    found, expected = scaled_fp8_triton.multiply(x, values, scales), scaled_fp8.multiply(x, values, scales)
    # A step of bfloat16, and for results near 0 what tensor cores cut off of 128 terms of 14 bits.
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2**-7)
    turned = replace(scales, of_blocks=scales.of_blocks.roll(1, 1).contiguous())
    assert (scaled_fp8_triton.multiply(x, values, turned) - expected).abs().max() > 0.1


def test_rounding_is_pytorch_s_to_the_bit() -> None:
    for powers_of_two in (True, False):
        found = scaled_fp8_triton.quantise(rows(300), 128, powers_of_two)
        expected = scaled_fp8.quantise(rows(300), 128, powers_of_two)
        assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
        assert torch.equal(found[1], expected[1])


def test_a_row_has_its_bits_among_any_others() -> None:
    """Within a tile for few rows, and within one for many."""
    values, scales = weight(2_112, HIDDEN, seed=1)
    x = rows(300)
    among = scaled_fp8_triton.multiply(x, values, scales)
    assert torch.equal(scaled_fp8_triton.multiply(x[100:130], values, scales), among[100:130])
    few = scaled_fp8_triton.multiply(x[:16], values, scales)
    assert torch.equal(scaled_fp8_triton.multiply(x[5:6], values, scales), few[5:6])


@pytest.mark.parametrize(("count", "step"), [(1, True), (5, True), (5, False), (400, False)])
def test_experts_equal_pytorch(count: int, step: bool) -> None:
    """400 tokens have 200 pairs an expert: the large tile."""
    gate_up, gate_up_scales = weight(COUNT, 2 * WIDTH, HIDDEN, seed=2)
    down, down_scales = weight(COUNT, HIDDEN, WIDTH, seed=3)
    router = torch.randn(COUNT, HIDDEN, device="cuda", generator=torch.Generator("cuda").manual_seed(4))
    w = Experts(
        Routing(PER_TOKEN, True), "silu", router, gate_up, down,
        gate_up_scales=gate_up_scales, down_scales=down_scales,
    )  # fmt: skip
    h = rows(count)
    chosen = (h.float() @ router.T).topk(PER_TOKEN, dim=1).indices
    found, expected = moe_triton.expert_outputs(w, h, chosen, step), looped(w, h, chosen)
    error = (found.float() - expected.float()).pow(2).mean().sqrt()
    # What is rounded between both products may fall to the other side of a step, an eighth, for a few neurons.
    assert error < 0.01 * expected.float().std()
    wrong = moe_triton.expert_outputs(w, h, chosen.flip(1), step)
    assert (wrong.float() - expected.float()).pow(2).mean().sqrt() > 0.5 * expected.float().std()
    if count == 5:
        alone = moe_triton.expert_outputs(w, h[2:3], chosen[2:3], step)
        assert torch.equal(alone[0], found[2])
