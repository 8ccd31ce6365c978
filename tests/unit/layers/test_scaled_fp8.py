"""Products in fp8 with scales for blocks of both sides: the kernels and PyTorch against plain arithmetic.

Without a GPU the kernels run in Triton's interpreter, on the CPU.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers import scaled_fp8
from hiscore.layers.fp8 import FP8
from hiscore.layers.moe import looped
from hiscore.layers.scaled_fp8 import ScaledLinear, quantise
from hiscore.layers.weights import Experts, Scales
from tests.support.fixed_sums import fix_sums
from tests.support.interpreted_fp8 import round_as_torch
from tests.support.layers import DEVICE, experts_of, random
from tests.support.tiers import first_of

pytestmark = pytest.mark.slow  # in the interpreter, with sums in a fixed order

# The same sums of float32 in another order: a rounding of each of up to 300 terms of a result near 1. Hopper's
# tensor cores keep 13 bits below the largest product while they add those of a block of 128.
NEAR: dict[str, Any] = {"atol": 4e-3 if DEVICE == "cuda" else 1e-4, "rtol": 1e-5}


def weight(*shape: int, seed: int, rows: int = 128, columns: int = 128) -> tuple[Tensor, Scales]:
    """A weight of standard deviation about 1/20, in blocks whose scales differ by a factor of 8."""
    *before, outputs, inputs = shape
    blocks = (*before, -(-outputs // rows), -(-inputs // columns))
    values = (random(*shape, seed=seed) * 60).to(FP8)
    scales = torch.exp2(-12 + 3 * random(*blocks, seed=seed + 1).clamp(-1, 1).abs())
    return values, Scales(scales, rows, columns, powers_of_two=False)


def plain(x: Tensor, values: Tensor, scales: Scales) -> Tensor:
    """x weight^T number by number, in float64."""
    rounded, of_rows = quantise(x, scales.columns, scales.powers_of_two)
    at_out = torch.arange(values.shape[0], device=DEVICE) // scales.rows
    at_in = torch.arange(values.shape[1], device=DEVICE) // scales.columns
    exact_weight = values.double() * scales.of_blocks.double()[at_out[:, None], at_in]
    return (rounded.double() * of_rows.double()[:, at_in]) @ exact_weight.T


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_sums(monkeypatch)
    pytest.importorskip("triton", reason="the Triton language is not installed")
    round_as_torch(monkeypatch)


def on_kernels() -> Any:
    from hiscore.layers import scaled_fp8_triton

    return scaled_fp8_triton


@pytest.mark.parametrize("powers_of_two", [True, False])
@pytest.mark.parametrize("columns", [32, 128])
def test_rounding_is_the_same_everywhere_and_near(columns: int, powers_of_two: bool) -> None:
    x = random(9, 328, seed=1) * torch.exp2(random(9, 328, seed=2) * 4)
    x[3, :columns] = 0
    values, scales = quantise(x, columns, powers_of_two)
    found = on_kernels().quantise(x, columns, powers_of_two)
    assert torch.equal(found[0].view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(found[1], scales)
    each = scales.repeat_interleave(columns, dim=1)[:, :328]
    if powers_of_two:
        assert torch.equal(torch.frexp(scales).mantissa, torch.full_like(scales, 0.5))
    # Half a step of three bits, and below float8's smallest normal number half its only step.
    assert ((values.float() * each - x).abs() <= x.abs() / 16 + each * 2**-10).all()
    assert (values.float().abs().unflatten(1, (-1, 8)).amax() > 224).all()


def test_what_is_not_finite_stays_so() -> None:
    x = random(3, 128, seed=1)
    x[0, 5], x[1, 7] = float("nan"), float("inf")
    weights = weight(8, 128, seed=2)
    for powers_of_two in (True, False):
        scales = replace(weights[1], powers_of_two=powers_of_two)
        for out in (ScaledLinear(weights[0], scales)(x), on_kernels().multiply(x, weights[0], scales)):
            assert out.isfinite().all(dim=1).tolist() == [False, False, True]


@pytest.mark.parametrize(("row_block", "columns"), [(128, 128), (64, 128), (8, 32), (1, 64)])
@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("way", ["torch", "triton"])
def test_a_product_equals_plain_arithmetic(way: str, rows: int, row_block: int, columns: int) -> None:
    """The last blocks are cut, of rows and of columns."""
    values, scales = weight(200, 328, seed=1, rows=row_block, columns=columns)
    x = random(rows, 328, seed=3)
    multiply = scaled_fp8.multiply if way == "torch" else on_kernels().multiply
    expected = plain(x, values, scales).float()
    torch.testing.assert_close(multiply(x, values, scales), expected, **NEAR)
    if rows:
        # Control: the scales of the next block of columns.
        wrong = replace(scales, of_blocks=scales.of_blocks.roll(1, 1).contiguous())
        assert (multiply(x, values, wrong) - expected).abs().max() > 0.1


def test_a_row_s_bits_do_not_depend_on_other_rows() -> None:
    """On a GPU the tensor cores' own sums of a block may differ between the tiles of few and of many rows."""
    values, scales = weight(200, 328, seed=1)
    x = random(40, 328, seed=3)
    multiply = on_kernels().multiply
    among = multiply(x, values, scales)
    assert torch.equal(multiply(x[17:], values, scales), among[17:])
    few = multiply(x[:9], values, scales)
    assert torch.equal(multiply(x[3:4], values, scales), few[3:4])
    # Control: a row's bits depend on the row.
    assert not torch.equal(among[3], among[4])


def experts(count: int = 5, width: int = 136, hidden: int = 264) -> Experts:
    gate_up, gate_up_scales = weight(count, 2 * width, hidden, seed=5, rows=8)
    down, down_scales = weight(count, hidden, width, seed=7)
    scales = {"gate_up_scales": gate_up_scales, "down_scales": down_scales}
    return experts_of(random(count, hidden, seed=9), gate_up, down, **scales)


def part(w: Experts, held: slice) -> Experts:
    """What a rank holds of experts."""
    assert w.gate_up_scales is not None
    assert w.down_scales is not None
    return replace(
        w,
        gate_up=w.gate_up[held],
        down=w.down[held],
        gate_up_scales=replace(w.gate_up_scales, of_blocks=w.gate_up_scales.of_blocks[held]),
        down_scales=replace(w.down_scales, of_blocks=w.down_scales.of_blocks[held]),
        first=held.start,
    )


def distance(found: Tensor, expected: Tensor) -> float:
    """The root mean square of the difference, in that of what is expected."""
    return float((found - expected).norm() / expected.norm().clamp(min=1e-6))


@pytest.mark.parametrize("tokens", [0, 1, 30])
@pytest.mark.parametrize("step", first_of(False, True))
def test_experts_equal_pytorch(tokens: int, step: bool) -> None:
    from hiscore.layers import moe_triton

    w, h = experts(), random(tokens, 264, seed=11)
    first = torch.arange(tokens, device=DEVICE) * 7 % 5
    chosen = torch.stack((first, (first + 2) % 5), dim=1)
    expected = looped(w, h, chosen)
    # What is rounded between the products may fall to the other side of a step, which is 6% of a neuron, for some
    # of 136: for few where sums differ by their order only, for more where tensor cores add with fewer bits.
    near = 2e-2 if DEVICE == "cuda" else 5e-3
    found = moe_triton.expert_outputs(w, h, chosen, step)
    assert distance(found, expected) <= near
    halves = [part(w, slice(0, 2)), part(w, slice(2, 5))]
    assert torch.equal(sum(moe_triton.expert_outputs(half, h, chosen, step) for half in halves), found)
    assert distance(torch.stack([looped(half, h, chosen) for half in halves]).sum(0), expected) <= near
    if tokens > 1:
        alone = moe_triton.expert_outputs(w, h[7:8], chosen[7:8], step)
        assert torch.equal(alone, found[7:8])
        # Control: the scales of another expert.
        assert w.down_scales is not None
        other = replace(w.down_scales, of_blocks=w.down_scales.of_blocks.roll(1, 0).contiguous())
        wrong = moe_triton.expert_outputs(replace(w, down_scales=other), h, chosen, step)
        assert distance(wrong, expected) > 10 * near
