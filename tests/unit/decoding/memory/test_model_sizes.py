"""What a rank's weights take, in fp8 and dequantised, against what it loads."""

from pathlib import Path

import pytest
import torch

from hiscore.decoding.memory.model_sizes import bytes_of_rank
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.loader import load_weights
from hiscore.parallel.shard import Shard
from tests.support import published_dsa
from tests.support.weights import held


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_of_latent_attention_takes_what_is_planned(ranks: int, tmp_path: Path) -> None:
    """Of four ranks each has 80 of 320 neurons, which no product takes in fp8."""
    sizes = {"v_head_dim": 64, "intermediate_size": 320, "moe_intermediate_size": 128}
    checkpoint, _ = published_dsa.make("deepseek-experts", tmp_path, **sizes)
    a, _ = read_architecture(checkpoint)
    shard, dtype = Shard(ranks - 1, ranks), torch.float32
    planned = {keeps: bytes_of_rank(checkpoint, dtype, keeps, shard) for keeps in (False, True)}
    for keeps_fp8, size in planned.items():
        weights = load_weights(checkpoint, a, torch.device("cpu"), dtype, keeps_fp8, shard)
        assert size == sum(held(weights).values())
    # Control: the one is not the other.
    assert planned[True] < 0.7 * planned[False]
