"""Pipelined products against PyTorch. Without a GPU the kernel runs in Triton's interpreter, on the CPU."""

import pytest
import torch

from hiscore.kernels import pipelined_products
from hiscore.kernels.pipelined_products import BLOCK, MAX_ROWS, MIN_PROGRAMS, STEP, fits, multiply, splits_of
from hiscore.layers.ops import Ops
from hiscore.layers.weights import Linear
from tests.support.layers import DEVICE, random

# In the interpreter, float32: sums of up to 512 products of O(1) and 1/16, in another order. On a GPU, bfloat16
# as in a model, since tiles of float32 do not fit its shared memory: sums are rounded to 8 significant bits, and
# gate and up are before they are multiplied.
DTYPE, BOUND = (torch.bfloat16, 2**-6) if DEVICE == "cuda" else (torch.float32, 2e-5)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return random(*shape, seed=seed).to(DTYPE)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 17, MAX_ROWS])
@pytest.mark.parametrize(("blocks", "steps"), [(1, 1), (1, 4), (3, 2), (33, 2)])
def test_products_equal_pytorch(rows: int, blocks: int, steps: int) -> None:
    outputs, inputs = blocks * BLOCK, steps * STEP
    x, weight = numbers(rows, inputs, seed=1), numbers(outputs, inputs, seed=2) / inputs**0.5
    for bias in (None, numbers(outputs, seed=3)):
        expected = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(multiply(x, weight, bias), expected, atol=BOUND, rtol=BOUND)
    # Control: the inputs of one tile less.
    short = torch.nn.functional.linear(x[:, STEP:], weight[:, STEP:])
    assert (multiply(x, weight) - short).abs().max() > 0.1


@pytest.mark.parametrize(("gelu", "activation"), [(0, "silu"), (1, "gelu_pytorch_tanh")])
@pytest.mark.parametrize("steps", [1, 2])
def test_gate_and_up_of_an_mlp_equal_pytorch(gelu: int, activation: str, steps: int) -> None:
    x, weight = numbers(5, steps * STEP, seed=1), numbers(2 * 96, steps * STEP, seed=2) / STEP**0.5
    expected = Ops(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
    torch.testing.assert_close(multiply(x, weight, gelu=gelu), expected, atol=BOUND, rtol=BOUND)
    # Control: gate and up exchanged.
    assert (multiply(x, weight.roll(96, 0), gelu=gelu) - expected).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 33])
def test_a_row_is_the_same_among_any_number(blocks: int) -> None:
    """As many as one product in the interpreter: NumPy adds up in another order for products of other shapes."""
    x, weight = numbers(MAX_ROWS, 4 * STEP, seed=1), numbers(blocks * BLOCK, 4 * STEP, seed=2)
    all_rows = multiply(x, weight)
    for rows in (MAX_ROWS // 2 + 1, MAX_ROWS - 1):
        assert torch.equal(multiply(x[:rows], weight), all_rows[:rows])


@pytest.mark.slow
def test_products_of_any_number_of_splits_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = torch.zeros(MIN_PROGRAMS, dtype=torch.int32, device=DEVICE)
    monkeypatch.setattr(pipelined_products, "_arrived", lambda device: counters)
    x = numbers(3, 4 * STEP, seed=1)
    for blocks, splits in ((1, 4), (17, 2), (1, 4), (33, 1), (32, 2), (16, 4)):
        weight = numbers(blocks * BLOCK, 4 * STEP, seed=2) / STEP**0.5
        assert splits_of(blocks, 4 * STEP) == splits
        torch.testing.assert_close(multiply(x, weight), x @ weight.T, atol=BOUND, rtol=BOUND)
        assert not counters.any()
    if DEVICE == "cuda":
        return  # programs run at once there: the sums may all be stored before any program adds them up
    # Control: a counter that does not begin at 0, so that another program than the last takes itself for it, and
    # adds up what memory held before: other sums, or anything, even NaN.
    counters[0] = 1
    assert not torch.allclose(multiply(2 * x, weight), 2 * x @ weight.T, atol=BOUND, rtol=BOUND)


def test_inputs_are_divided_where_there_are_few_programs() -> None:
    assert [splits_of(tiles, 8 * STEP) for tiles in (1, 16, 17, 32, 33, 64)] == [4, 4, 2, 2, 1, 1]
    assert [splits_of(1, steps * STEP) for steps in (1, 2, 3, 6, 12)] == [1, 2, 1, 2, 4]


def test_weights_that_fit() -> None:
    def weight(outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(outputs, inputs, dtype=dtype)

    assert fits(weight(BLOCK, STEP))
    assert not fits(weight(BLOCK + 32, STEP))
    assert not fits(weight(BLOCK, STEP + 64))
    assert not fits(weight(BLOCK, STEP, torch.float32))


def test_rows_need_contiguous_tensors() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        multiply(numbers(5, 2 * STEP, seed=1)[:, :STEP], numbers(BLOCK, STEP, seed=2))
