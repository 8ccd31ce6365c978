"""Products in int8: PyTorch and the kernel against plain integers, and rows that do not see each other."""

import pytest
import torch

from hiscore.layers.eight_bits import (
    EXACT_INPUTS,
    INT8_INPUTS,
    EightBits,
    Int8Linear,
    Quantised,
    exact_product,
    quantise,
)
from tests.support.layers import DEVICE, random

INT8 = EightBits.INT8
# What a product is written in. Triton's interpreter cuts bfloat16 off where a GPU rounds; a GPU's large tiles have
# room for two bytes a number, and it adds a bias to a float32 product without rounding that first.
OUT = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8).to(DEVICE)


def test_rows_are_rounded_to_the_nearest_each_by_its_own_scale() -> None:
    x = random(200, 64, seed=1) * torch.logspace(-20, 20, 200, device=DEVICE)[:, None]
    found = quantise(x, INT8)
    assert (found.values.dtype, found.scales.dtype) == (torch.int8, torch.float32)
    restored, peaks = found.values.double() * found.scales.double(), x.double().abs().amax(1, keepdim=True)
    # Half a step, and float32's rounding of the scale and of the quotient, of up to 127 steps.
    bound = peaks / 127 * (0.5 + 127 * 2**-22)
    assert ((restored - x.double()).abs() <= bound).all()
    assert (found.values.abs().amax(1) == 127).all()
    # The control: one scale for all the rows loses most of them.
    as_one = quantise(x.flatten()[None], INT8)
    lost = (as_one.values.double() * as_one.scales.double()).view_as(x) - x.double()
    assert (lost.abs() > bound).double().mean() > 0.5


def test_halves_go_to_the_even_number() -> None:
    halves = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]], device=DEVICE)
    assert quantise(halves, INT8).values.tolist() == [[127, 0, 2, 2, 0, -2]]


@pytest.mark.parametrize("inputs", [1, EXACT_INPUTS, EXACT_INPUTS + 1, 3 * EXACT_INPUTS + 7])
def test_sums_are_exact_at_their_largest(inputs: int) -> None:
    x = torch.full((3, inputs), 127, dtype=torch.int8, device=DEVICE)
    weight = torch.stack(
        [torch.full((inputs,), sign * 127, dtype=torch.int8, device=DEVICE) for sign in (1, -1)]
    )
    # An odd last sum, which float32 does not have once it is large.
    x[2, 0] = 126
    expected = (x.long()[:, None] * weight.long()).sum(-1)
    torch.testing.assert_close(exact_product(x, weight).long(), expected, atol=0, rtol=0)


def test_control_a_longer_slice_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hiscore.layers.eight_bits.EXACT_INPUTS", 4 * EXACT_INPUTS)
    x = torch.full((1, 4 * EXACT_INPUTS), 127, dtype=torch.int8, device=DEVICE)
    x[0, 0] = 126
    assert int(exact_product(x, x)) != int((x.long() ** 2).sum())


def test_sums_of_the_widest_projection_fit_32_bits() -> None:
    assert INT8_INPUTS * 127**2 < 2**31 <= (INT8_INPUTS + 1) * 127**2


@pytest.mark.parametrize("rows", [0, 1, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_projection_equals_the_product_of_what_was_dequantised(rows: int, dtype: torch.dtype) -> None:
    weight, x = quantise(random(48, 2_080, seed=3), INT8), quantise(random(rows, 2_080, seed=5), INT8)
    bias = random(48, seed=4).to(dtype)
    exact = (x.values.double() * x.scales.double()) @ (weight.values.double() * weight.scales.double()).T
    for added in (None, bias):
        found = Int8Linear(weight, dtype, added).reference(x)
        assert found.dtype == dtype
        expected = exact if added is None else exact.to(dtype).double() + added.double()
        # Roundings of the sum, of two products with scales, of the result and of the sum with a bias.
        bound = 5 * torch.finfo(dtype).eps / 2 * (exact.abs() + bias.double().abs())
        assert ((found.double() - expected).abs() <= bound).all()
    if rows:
        # The control: the scales of another output.
        wrong = Int8Linear(Quantised(weight.values, weight.scales.roll(1, 0)), dtype).reference(x)
        assert ((wrong.double() - exact).abs() > 5 * torch.finfo(dtype).eps * exact.abs()).any()


def test_a_row_has_the_same_bits_whatever_else_is_in_the_batch() -> None:
    weight, x = quantise(random(64, 1_536, seed=6), INT8), random(300, 1_536, seed=7)
    x[100] *= 1e6
    linear = Int8Linear(weight, OUT)
    together = linear(quantise(x, INT8))
    for rows in (1, 2, 17, 128):
        assert torch.equal(linear(quantise(x[:rows], INT8)), together[:rows])
    # The control: with a scale for the whole batch they would not.
    found = []
    for part in (x, x[:17]):
        scale = part.abs().amax() / 127
        found.append(linear(Quantised(torch.round(part / scale).to(torch.int8), scale.expand(len(part), 1))))
    assert not torch.equal(found[0][:17], found[1])


def test_what_is_not_finite_shows_in_its_own_row() -> None:
    x = random(4, 96, seed=8)
    x[0], x[1, 3], x[2, 5] = 0, float("nan"), float("-inf")
    found = Int8Linear(quantise(random(32, 96, seed=9), INT8), OUT)(quantise(x, INT8))
    assert (found[0] == 0).all()
    assert not found[1].isfinite().any()
    assert not found[2].isfinite().any()
    assert found[3].isfinite().all()


TILES = pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 16, 16), (5, 48, 208), (70, 144, 80), (33, 320, 144)]
)


@TILES
@pytest.mark.parametrize("biased", [False, True])
def test_the_kernel_equals_pytorch_to_the_bit(rows: int, outputs: int, inputs: int, biased: bool) -> None:
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from hiscore.kernels.gated_mlp import Tile
    from hiscore.kernels.int8 import multiply_by_tiles

    x, weight = whole_numbers(rows, inputs, seed=1), whole_numbers(outputs, inputs, seed=2)
    x_scales, scales = random(rows, 1, seed=3).abs(), random(outputs, 1, seed=4).abs()
    bias = random(outputs, seed=5).to(OUT) if biased else None
    expected = Int8Linear(Quantised(weight, scales), OUT, bias).reference(Quantised(x, x_scales))
    for tile in (Tile(64, 128, 128, 4, 3, 1), Tile(32, 32, 64, 4, 3, 1)):
        for multiprocessors in (1, 132):
            found = multiply_by_tiles(x, x_scales, weight, scales, bias, OUT, tile, multiprocessors)
            assert torch.equal(found, expected)
    # The control: a number off by one.
    weight[0, 0] += 1 if weight[0, 0] < 127 else -1
    wrong = multiply_by_tiles(x, x_scales, weight, scales, bias, OUT, tile, 1)
    assert not torch.equal(wrong, expected)
