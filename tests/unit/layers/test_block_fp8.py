"""Products in fp8 with a scale for each block: the kernel and PyTorch against plain arithmetic."""

import pytest
import torch

from hiscore.layers.block_fp8 import BLOCKS, BlockFp8Linear
from hiscore.layers.fp8 import FP8, quantise
from tests.support.layers import DEVICE, random


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("rows", [0, 1, 130])
@pytest.mark.parametrize("way", ["torch", "triton"])
def test_a_product_equals_that_of_the_dequantised(way: str, rows: int, block: int) -> None:
    outputs, inputs = 72, 208  # the last block is shorter
    blocks = -(-inputs // block)
    values = random(outputs, inputs, seed=1).to(FP8)
    scales = random(outputs, blocks, seed=2).abs() + 0.1
    bias, x = random(outputs, seed=3).bfloat16(), quantise(random(rows, inputs, seed=4))
    each = torch.stack([scales[:, column // block] for column in range(inputs)], dim=1)
    exact = (x.values.double() * x.scales.double()) @ (values.double() * each.double()).T
    for added in (None, bias):
        linear = BlockFp8Linear(values, scales, block, added)
        if way == "torch":
            found = BlockFp8Linear.reference(linear, x)
        else:
            pytest.importorskip("triton", reason="the Triton language is not installed")
            from hiscore.kernels.block_fp8 import multiply

            found = multiply(x.values, x.scales, values, scales, added, block)
        expected = exact.bfloat16() + (0 if added is None else added)
        # A step of bfloat16 for the product and one for the sum: Triton's interpreter cuts off, not rounds.
        torch.testing.assert_close(found, expected, atol=2**-4, rtol=2**-6)
        if rows and way == "triton":
            # Control: the scales of another block.
            wrong = multiply(x.values, x.scales, values, scales.roll(1, 1).contiguous(), added, block)
            assert (wrong - expected).abs().max() > 1
    assert found.device.type == DEVICE
