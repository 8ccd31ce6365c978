"""Kernels of a layer's operations against PyTorch. Without a GPU they run in Triton's interpreter, on the CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import gated_mlp, gemv
from hiscore.kernels.gated_mlp import MEDIUM, Tile, multiply
from hiscore.layers import triton_ops
from hiscore.layers.fp8 import FP8, Quantised, quantise
from hiscore.layers.ops import Ops
from hiscore.layers.step_products import StepProducts
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import Linear
from tests.support.interpreted_fp8 import round_as_torch
from tests.support.layers import DEVICE, random


def test_gemv_is_taken_where_it_may_be() -> None:
    taken = []
    products = StepProducts()
    ops = TritonOps(4, 2, 16, 1e-6, "silu", step_products=products)
    for rows, inputs in ((4, 40), (5, 40), (4, gemv.GEMV_MAX_INPUTS + 1), (0, 40)):
        x, weight = random(rows, inputs), random(6, inputs, seed=1)
        taken.append(products.is_gemv(Linear(weight), x))
        torch.testing.assert_close(ops.project(Linear(weight), x), x @ weight.T, atol=1e-3, rtol=1e-4)
        assert ops.gate(Linear(weight), x).shape == (rows, 3)
    assert taken == [True, False, False, False]


@pytest.mark.slow
def test_the_gated_kernel_is_taken_for_16_bits_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Tile] = []

    def watched(x: Any, weight: Any, gelu: bool, tile: Tile, multiprocessors: int) -> torch.Tensor:
        called.append(tile)
        return multiply(x, weight, gelu, tile, multiprocessors)

    monkeypatch.setattr(gated_mlp, "multiply", watched)
    monkeypatch.setattr(triton_ops, "hopper_sm_count", lambda: 5)
    ops = TritonOps(4, 2, 16, 1e-6, "silu")
    x, weight = (random(count, 64, seed=count).half() for count in (600, 256))
    expected = Ops(4, 2, 16, 1e-6, "silu").gate(Linear(weight), x)
    torch.testing.assert_close(ops.gate(Linear(weight), x), expected, atol=2**-5, rtol=2**-8)
    assert called == [MEDIUM]
    ops.gate(Linear(weight, random(256).half()), x)
    ops.gate(Linear(weight.float()), x.float())
    assert ops.gate(Linear(weight), x[:0]).shape == (0, 128)
    ops.gate(Linear(weight), x[:560])
    assert called == [MEDIUM] * 2
    monkeypatch.setattr(triton_ops, "hopper_sm_count", lambda: 0)
    ops.gate(Linear(weight), x)
    assert called == [MEDIUM] * 2


@pytest.mark.parametrize("sandwich", [False, True])
@pytest.mark.parametrize("rows", [gemv.GEMV_MAX_ROWS, gemv.GEMV_MAX_ROWS + 1])
@pytest.mark.parametrize(
    ("inputs", "centred", "normed"),
    [(24, False, True), (gemv.GEMV_MAX_INPUTS + 8, False, True), (24, True, True), (24, False, False)],
)
def test_a_norm_may_be_left_to_the_product_that_reads_it(
    inputs: int, centred: bool, normed: bool, rows: int, sandwich: bool
) -> None:
    """But no layer norm. Bound: float32 sums of up to 4,104 products of O(1) and 1/64."""
    arguments = 4, 2, 16, 1e-6, "silu", centred
    ours, plain = TritonOps(*arguments, step_products=StepProducts()), Ops(*arguments)
    output, after = (Linear(random(*size, seed=1) / inputs**0.5) for size in ((48, inputs), (20, 48)))
    norm, post = random(48, seed=2) if normed else None, random(48, seed=3) if sandwich else None
    results = []
    for ops in (ours, plain):
        x, h = random(rows, 48, seed=4), random(rows, inputs, seed=5)
        h = ops.project_add_norm(x, output, h, post, norm)
        results.append((x, ops.project(after, h), ops.gate(after, h)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def true_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    round_as_torch(monkeypatch)


def assert_same_bits(found: Quantised, expected: Quantised) -> None:
    torch.testing.assert_close(found.scales, expected.scales, atol=0, rtol=0)
    torch.testing.assert_close(found.values.float(), expected.values.float(), atol=0, rtol=0)


def test_rows_are_quantised_to_the_same_bits_as_in_pytorch(true_fp8: None) -> None:
    x = random(64, 2_112, seed=13) * torch.logspace(-12, 12, 64, device=DEVICE)[:, None]
    # Zeros; a peak below which nothing is scaled up; and steps of 1/8, many of them right between two numbers.
    x[0], x[1] = 0, 1e-33
    x[2] = torch.arange(2_112, device=DEVICE) / 8 % 448
    x[2, 0] = 448
    ops = TritonOps(4, 2, 16, 1e-6, "silu")
    found = ops.quantise(x)
    assert found.values.dtype == FP8
    assert_same_bits(found, quantise(x))
    assert ops.quantise(x[:0]).values.shape == (0, 2_112)
    # What is not finite stays so, and in its row.
    x[4, 7], x[6, 2_000] = float("nan"), float("inf")
    found = ops.quantise(x)
    assert_same_bits(Quantised(found.values[:4], found.scales[:4]), quantise(x[:4]))
    restored = found.values.float() * found.scales
    assert not restored[4, 7].isfinite()
    assert not restored[6, 2_000].isfinite()
    assert restored[[0, 1, 2, 3, 5, 7]].isfinite().all()


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_operations_give_in_fp8_what_they_give_otherwise_quantised(activation: str, true_fp8: None) -> None:
    """To the same bits: a format changes how a row is stored, nothing before; so too in PyTorch."""
    width, rows = 80, 5
    weight, post, table = random(width, seed=1), random(width, seed=2), random(50, width, seed=3)
    ids = torch.tensor([3, 49, 0, 3, 7], dtype=torch.int32, device=DEVICE)
    update, gate_up = random(rows, width, seed=4), random(rows, 2 * width, seed=6)
    for kind in (TritonOps, Ops):
        ops = kind(3, 1, 24, 1e-6, activation)
        (x, h), (other_x, other_h) = (
            ops.embed(ids, table, 6.3, weight, as_read) for as_read in (True, False)
        )
        torch.testing.assert_close(x, other_x, atol=0, rtol=0)
        assert_same_bits(h, quantise(other_h))
        for post_weight in (None, post):
            x, other_x = random(rows, width, seed=5), random(rows, width, seed=5)
            h = ops.add_norm(x, update, post_weight, weight, True)
            assert_same_bits(h, quantise(ops.add_norm(other_x, update, post_weight, weight)))
            torch.testing.assert_close(x, other_x, atol=0, rtol=0)
        assert_same_bits(ops.activate(gate_up, True), quantise(ops.activate(gate_up)))
        assert ops.activate(gate_up[:0], True).values.shape == (0, width)


def test_each_gpu_is_asked_for_its_own_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hopper beside an Ampere: the first one's was taken for both."""
    gpus = [
        SimpleNamespace(major=9, multi_processor_count=132),
        SimpleNamespace(major=8, multi_processor_count=108),
    ]
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    triton_ops._of_device.cache_clear()
    try:
        assert (triton_ops.supports_pdl(), triton_ops.hopper_sm_count()) == (True, 132)
        current[0] = 1
        assert (triton_ops.supports_pdl(), triton_ops.hopper_sm_count()) == (False, 0)
    finally:
        triton_ops._of_device.cache_clear()
