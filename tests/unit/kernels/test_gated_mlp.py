"""The gated MLP kernel against PyTorch. Without a GPU it runs in Triton's interpreter, on the CPU."""

import pytest
import torch

from hiscore.kernels.gated_mlp import LARGE, MEDIUM, SMALL, Tile, multiply, tile_for
from hiscore.layers.ops import Ops
from hiscore.layers.weights import Linear
from tests.support.layers import DEVICE, random
from tests.support.tiers import first_of


@pytest.mark.slow
@pytest.mark.parametrize("multiprocessors", first_of(1, 100))
@pytest.mark.parametrize("activation", first_of("silu", "gelu_pytorch_tanh"))
@pytest.mark.parametrize("tile", [SMALL, MEDIUM, LARGE], ids=["small", "medium", "large"])
def test_a_gated_product_equals_pytorch(tile: Tile, activation: str, multiprocessors: int) -> None:
    """Tiles over the edges. Bound: float32 sums; on a GPU, which takes 16 bits only, a rounding of 8 bits each."""
    dtype, near = (torch.bfloat16, 2**-7) if DEVICE == "cuda" else (torch.float32, 1e-5)
    for rows, inputs, outputs in ((1, 8, 8), (130, 72, 200), (300, 200, 72), (2200, 16, 136)):
        x, weight = random(rows, inputs, seed=1), random(2 * outputs, inputs, seed=2) / inputs**0.5
        x, weight = x.to(dtype), weight.to(dtype)
        found = multiply(x, weight, activation != "silu", tile, multiprocessors)
        expected = Ops(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
        torch.testing.assert_close(found, expected, atol=near, rtol=near)
        # Control: gate and up in each other's place.
        wrong = multiply(x, weight.roll(outputs, 0), activation != "silu", tile, multiprocessors)
        assert not torch.allclose(wrong, expected, atol=10 * near, rtol=10 * near)


def test_a_tile_is_taken_where_it_fills_the_device() -> None:
    """Of the numbers of rows that were timed, at the sizes of Qwen3-0.6B on 132 multiprocessors."""
    taken = {rows: tile_for(rows, 1024, 3072, 132) for rows in (64, 320, 384, 640, 768, 1536, 1920, 15360)}
    assert taken == {
        64: None, 320: SMALL, 384: None, 640: MEDIUM, 768: None, 1536: None, 1920: MEDIUM, 15360: LARGE,
    }  # fmt: skip
    assert MEDIUM.fill(1920, 3072, 132) == 15 * 48 / (3 * 264)
    assert tile_for(640, 2048, 6144, 132) is MEDIUM
    assert tile_for(320, 2048, 6144, 132) is None
    assert tile_for(0, 1024, 3072, 132) is None
    assert tile_for(15360, 1020, 3072, 132) is tile_for(15360, 1024, 3076, 132) is None
