"""What a rank's weights take, in fp8 and dequantised, against what it loads."""

from pathlib import Path
from typing import cast

import pytest
import torch

from hiscore.decoding.memory.model_sizes import bytes_of_rank
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Linear, Mlp
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.loader import load_weights
from hiscore.parallel.shard import WHOLE, Shard
from tests.support import published_dsa
from tests.support.weights import held


@pytest.mark.parametrize(
    ("family", "ranks"), [*(("deepseek-experts", n) for n in (1, 2, 4)), ("glm-experts", 1)]
)
def test_a_rank_of_latent_attention_takes_what_is_planned(family: str, ranks: int, tmp_path: Path) -> None:
    """Of four ranks each has 80 of 320 neurons, which no product takes in fp8."""
    sizes = {"v_head_dim": 64, "intermediate_size": 320, "moe_intermediate_size": 128}
    checkpoint, _ = published_dsa.make(family, tmp_path, **sizes)
    a, _ = read_architecture(checkpoint)
    dtype, whole = torch.float32, bytes_of_rank(checkpoint, torch.float32, False, WHOLE)
    for shard in (Shard(rank, ranks) for rank in range(ranks)):
        planned = {keeps: bytes_of_rank(checkpoint, dtype, keeps, shard) for keeps in (False, True)}
        for keeps_fp8, size in planned.items():
            weights = load_weights(checkpoint, a, torch.device("cpu"), dtype, keeps_fp8, shard)
            assert size == sum(held(weights).values())
        down = cast(Mlp, weights.layers[0].mlp).down
        assert isinstance(down, Linear if ranks == 4 else ScaledLinear)
        # Controls: the one is not the other, and neither is an even share of all weights.
        assert planned[True] < 0.7 * planned[False]
        assert ranks == 1 or planned[False] > 1.05 * whole / ranks
