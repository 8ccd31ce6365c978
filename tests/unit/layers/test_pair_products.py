"""Inner products of pairs of rows, in PyTorch and by the kernel: without a GPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import pair_products as kernels
from hiscore.layers import pair_products
from tests.support.layers import DEVICE, random

ROWS, WEIGHTS, WIDTH = 7, 50, 577


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@pytest.fixture(autouse=True, params=[1024, 64])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row in one block, and in ten."""
    monkeypatch.setattr(kernels, "MAX_BLOCK", request.param)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    x, weight = random(ROWS, WIDTH, seed=1).to(dtype), random(WEIGHTS, WIDTH, seed=2).to(dtype)
    rows, chosen = ints(0, 6, 6, 3), ints(49, 0, 7, 7)
    expected = (x.double()[rows] * weight.double()[chosen]).sum(1)
    # float32 sums of 577 products of normal numbers.
    bounds = {"atol": 5e-5, "rtol": 0}
    found = kernels.multiply_pairs(x, weight, rows, chosen)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, **bounds)
    plain = pair_products.multiply_pairs(x.cpu(), weight.cpu(), rows.cpu(), chosen.cpu())
    torch.testing.assert_close(plain.double(), expected.cpu(), **bounds)
    every = kernels.multiply_by_each(x, weight, chosen)
    torch.testing.assert_close(every.double(), x.double() @ weight.double()[chosen].T, **bounds)


def test_a_pair_has_the_same_bits_whatever_else_is_computed() -> None:
    x, weight = random(ROWS, WIDTH, seed=1), random(WEIGHTS, WIDTH, seed=2)
    chosen = ints(49, 0, 7)
    every = kernels.multiply_by_each(x, weight, chosen)
    rows = torch.arange(ROWS, dtype=torch.int32, device=DEVICE).repeat_interleave(3)
    together = kernels.multiply_pairs(x, weight, rows, chosen.repeat(ROWS))
    assert torch.equal(together.view(ROWS, 3), every)
    alone = kernels.multiply_pairs(x[4:5].clone(), weight, ints(0), ints(7))
    assert torch.equal(alone, every[4, 2:])
    # The control: the sum in another order.
    assert not torch.equal((x * weight[7]).flip(1).cumsum(1)[:, -1], every[:, 2])


def test_no_pairs_are_nothing() -> None:
    x, weight, none = random(0, WIDTH), random(WEIGHTS, WIDTH), ints()
    assert kernels.multiply_by_each(x, weight, ints(3, 4)).shape == (0, 2)
    assert kernels.multiply_pairs(random(2, WIDTH), weight, none, none).shape == (0,)
