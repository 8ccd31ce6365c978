"""Products of low rank by kernels are those of PyTorch, whichever rows of other adapters share a tile."""

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.metadata import TOKEN_BITS
from hiscore.layers import triton_ops
from hiscore.layers.adapters import AdaptedTorchOps, Adapters, LowRank
from hiscore.layers.triton_ops import AdaptedTritonOps
from hiscore.layers.weights import Linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (4, 2, 16, 1e-6, "silu")
# Columns of each part, and the ranks of its adapters.
PARTS = {(0, 130): {1: 3, 3: 70}, (130, 150): {1: 2, 2: 5}}


def products(dtype: torch.dtype) -> list[LowRank]:
    def matrix(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) / 8).to(DEVICE, dtype)

    made = []
    for part, ranks in PARTS.items():
        made.append(LowRank.empty(slice(*part), 70, ranks, 3, torch.empty(0, dtype=dtype, device=DEVICE)))
        for number, rank in ranks.items():
            made[-1].fill(number, matrix(rank, 70), matrix(rank, part[1] - part[0]))
    return made


# Sums of 70 and of up to 70 products of O(1) and 1/8, in another order; in 16 bits rounded twice more.
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-5), (torch.float16, 2e-2)])
def test_kernels_give_what_pytorch_does(dtype: torch.dtype, near: float) -> None:
    torch.manual_seed(0)
    projection = Linear(torch.zeros(170, 70, dtype=dtype, device=DEVICE))
    adapters = Adapters({id(projection): products(dtype)}, None)
    ops = [kind(adapters, *SIZES) for kind in (AdaptedTorchOps, AdaptedTritonOps)]
    x = torch.randn(22, 70).to(DEVICE, dtype)
    # Number 2 has no product in the first part, and the second tile has no adapter.
    numbers = torch.randint(0, 4, (22,), dtype=torch.int32, device=DEVICE)
    numbers[16:] = 0
    for each in ops:
        assert (each.adapt((numbers << TOKEN_BITS) + 7) == 7).all()
    expected, found = (each.project(projection, x) for each in ops)
    torch.testing.assert_close(found, expected, atol=near, rtol=0)
    assert (expected.abs().amax(dim=1) > 0.1).tolist() == (numbers > 0).tolist()
    assert not found[numbers == 0].any()
    for row in (0, 7, 15):
        ops[1].adapt(numbers[row : row + 1] << TOKEN_BITS)
        torch.testing.assert_close(
            ops[1].project(projection, x[row : row + 1])[0], found[row], atol=0, rtol=0
        )


def test_a_fused_product_of_gate_and_up_is_not_taken_under_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Hopper, whose kernel knows no adapters."""
    projection = Linear(torch.zeros(170, 70, dtype=torch.float16, device=DEVICE))
    adapters = Adapters({id(projection): products(torch.float16)}, None)
    ops = AdaptedTritonOps(adapters, *SIZES)
    x = torch.randn(3, 70).to(DEVICE, torch.float16)
    ops.adapt(torch.tensor([1, 0, 3], dtype=torch.int32, device=DEVICE) << TOKEN_BITS)
    expected = ops.activate(ops.project(projection, x))
    monkeypatch.setattr(triton_ops, "hopper_sm_count", lambda: 132)
    monkeypatch.setattr(triton_ops.gated_mlp, "tile_for", lambda *sizes: "a tile")
    monkeypatch.setattr(triton_ops.gated_mlp, "multiply", lambda *given: "fused")
    torch.testing.assert_close(ops.gate(projection, x), expected, atol=0, rtol=0)
    # The control: a projection without adapters takes it.
    assert ops.gate(Linear(projection.weight), x) == "fused"
