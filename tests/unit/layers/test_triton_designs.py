"""Kernels of a layer's operations against PyTorch, with the switches of all block designs."""

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import gemv
from hiscore.layers.ops import Ops
from hiscore.layers.step_products import StepProducts
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import Linear
from tests.support.layers import DEVICE, Tables, layer_of, random

# No powers of two, so that every mask is used, and more heads than one program takes. The bounds are those of
# float32 sums over at most 264 values.
HEADS, KV_HEADS, HEAD_DIM, WIDTH, ROWS = 11, 6, 24, 40, 5
BOUNDS = {"atol": 1e-5, "rtol": 1e-5}


def both(activation: str = "silu", centred: bool = False, for_steps: bool = False) -> tuple[TritonOps, Ops]:
    sizes = HEADS, KV_HEADS, HEAD_DIM, 1e-6, activation, centred
    return TritonOps(*sizes, StepProducts() if for_steps else None), Ops(*sizes)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_block_norms_equal_pytorch(normed: bool, centred: bool) -> None:
    weight, table = random(WIDTH, seed=1) if normed else None, random(50, WIDTH, seed=3)
    ids = torch.tensor([3, 49, 0, 3, 7], dtype=torch.int32, device=DEVICE)
    ours, plain = both(centred=centred)
    found, expected = (ops.embed(ids, table, 6.3, weight) for ops in (ours, plain))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, **BOUNDS)
    if normed and centred:
        x = expected[0].double()
        definition = torch.nn.functional.layer_norm(x, (WIDTH,), weight.double(), eps=1e-6)
        torch.testing.assert_close(found[1].double(), definition, **BOUNDS)
    if not normed:
        torch.testing.assert_close(found[1], found[0], atol=0, rtol=0)
    for post_weight in (None, random(WIDTH, seed=2)):
        x, y = random(ROWS, WIDTH, seed=5), random(ROWS, WIDTH, seed=5)
        update = random(ROWS, WIDTH, seed=4)
        h = ours.add_norm(x, update, post_weight, weight)
        torch.testing.assert_close(h, plain.add_norm(y, update, post_weight, weight), **BOUNDS)
        torch.testing.assert_close(x, y, **BOUNDS)


@pytest.mark.parametrize("for_steps", [False, True])
@pytest.mark.parametrize(
    ("rotated", "scaled", "norm", "centred"),
    [
        (False, False, "none", False),
        (False, False, "head", False),
        (True, False, "none", False),
        (True, False, "head", False),
        (True, True, "none", False),
        (True, False, "all", False),
        (True, True, "all", False),
        (False, False, "by head", False),
        (True, False, "by head", True),
        (False, False, "head", True),
    ],
)
def test_queries_and_keys_equal_pytorch(
    rotated: bool, scaled: bool, norm: str, centred: bool, for_steps: bool
) -> None:
    """Keys and values of the third row are kept, and of the second and fifth."""
    shapes = {
        "head": ((HEAD_DIM,), (HEAD_DIM,)),
        "by head": ((HEADS, HEAD_DIM), (KV_HEADS, HEAD_DIM)),
        "all": ((HEADS * HEAD_DIM,), (KV_HEADS * HEAD_DIM,)),
    }
    layer = layer_of(
        *(None, None) if norm == "none" else (random(*shape, seed=sum(shape)) for shape in shapes[norm])
    )
    rope = Tables(random(60, HEAD_DIM // 2, seed=9), random(60, HEAD_DIM // 2, seed=10)) if rotated else None
    if rope is not None and scaled:
        rope.query_scales = random(60, seed=12).abs() + 0.5
    positions = torch.tensor([0, 1, 59, 5, 5], dtype=torch.int32, device=DEVICE)
    write = torch.tensor([-1, 2, 0, -1, 1], dtype=torch.int32, device=DEVICE)
    results = []
    for ops in both(centred=centred, for_steps=for_steps):
        qkv = random(ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM, seed=11)
        pool = random(4, 2, KV_HEADS, HEAD_DIM, seed=12)
        ops.rope_and_cache(layer, rope, qkv, positions, pool, write)
        results.append((qkv, pool))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **BOUNDS)
    q, k, v = results[0][0].unflatten(1, (-1, HEAD_DIM)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    torch.testing.assert_close(results[0][1][[2, 0, 1]], torch.stack((k, v), 1)[[1, 2, 4]], atol=0, rtol=0)
    # The control: each switch changes what it is about.
    plain = random(ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM, seed=11).unflatten(1, (-1, HEAD_DIM))
    unchanged = torch.equal(q, plain[:, :HEADS])
    assert unchanged == (not rotated and norm == "none")


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_a_gated_activation_equals_pytorch(activation: str) -> None:
    ours, plain = both(activation)
    gate_up = random(ROWS, 2 * WIDTH, seed=6)
    torch.testing.assert_close(ours.activate(gate_up), plain.activate(gate_up), **BOUNDS)


def test_exact_gelu_equals_pytorch_wherever_it_is_computed() -> None:
    gate_up, x, weight = (
        random(ROWS, 2 * WIDTH, seed=6),
        random(ROWS, 32, seed=7),
        random(2 * WIDTH, 32, seed=8),
    )
    ours, plain = both("gelu")
    torch.testing.assert_close(ours.activate(gate_up), plain.activate(gate_up), **BOUNDS)
    gate, up = gate_up.chunk(2, dim=1)
    definition = torch.nn.functional.gelu(gate.double()) * up.double()
    torch.testing.assert_close(ours.activate(gate_up).double(), definition, **BOUNDS)
    few = TritonOps(HEADS, KV_HEADS, HEAD_DIM, 1e-6, "gelu", step_products=StepProducts())
    found = few.gate(Linear(weight), x[: gemv.GEMV_MAX_ROWS])
    torch.testing.assert_close(
        found, plain.gate(Linear(weight), x)[: gemv.GEMV_MAX_ROWS], atol=1e-4, rtol=1e-4
    )
    # The control: the other GELU differs by more.
    tanh = both("gelu_pytorch_tanh")[0].activate(gate_up)
    assert (tanh - ours.activate(gate_up)).abs().max() > 1e-4
