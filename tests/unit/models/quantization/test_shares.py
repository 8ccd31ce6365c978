"""A rank's share of weights in fp8 that stay so, wherever it ends: at a block of scales or inside one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers.fp8 import Fp8Linear
from hiscore.layers.scaled_fp8 import ScaledLinear, dequantise
from hiscore.layers.weights import Linear, Mlp, Weights
from hiscore.models.config import read_architecture
from hiscore.models.loader import load_weights
from hiscore.parallel.shard import WHOLE, Shard
from tests.support import quantised, tiny_models

CPU = torch.device("cpu")
BLOCK = [128, 128]


def published(directory: Path, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> tuple[Path, Path]:
    """A checkpoint in blocks of 128 x 128, and the same dequantised."""
    monkeypatch.setattr(tiny_models, "SIZES", {**tiny_models.SIZES, "num_hidden_layers": 1, **sizes})
    dense = tiny_models.make("llama-biased", directory / "dense")
    config: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": BLOCK}
    scheme = quantised.Scheme(config, lambda weight: quantised.fp8_in_blocks(weight, (128, 128)))
    return quantised.make(dense, scheme, directory / "quantised"), dense


def weights(checkpoint: Path, fp8: bool, shard: Shard = WHOLE) -> Weights:
    a, _ = read_architecture(checkpoint)
    return load_weights(checkpoint, a, CPU, torch.float32, fp8, shard)


def dense_of(projection: Any) -> Tensor:
    if isinstance(projection, Linear):
        return projection.weight
    if isinstance(projection, Fp8Linear):
        return projection.weight.values.float() * projection.weight.scales
    assert isinstance(projection, ScaledLinear)
    return dequantise(projection.values, projection.scales)


# Hidden size 192 ends inside a block. Neurons of two ranks end at 192, of four at 96: inside blocks, on all ranks.
@pytest.mark.parametrize(("ranks", "block"), [(1, 128), (2, 64), (4, 32)])
def test_shares_are_the_whole_and_stored_alike_on_all_ranks(
    ranks: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, dense = published(tmp_path, monkeypatch, hidden_size=192, intermediate_size=384)
    (whole,) = weights(dense, None).layers
    layers = [weights(checkpoint, True, Shard(rank, ranks)).layers[0] for rank in range(ranks)]
    mlps = [layer.mlp for layer in layers]
    downs, outputs = [mlp.down for mlp in mlps if isinstance(mlp, Mlp)], [layer.output for layer in layers]
    assert all(isinstance(down, ScaledLinear) and down.scales.columns == block for down in downs)
    # Heads have 48 columns, which four ranks cut into blocks of 16: what no product takes is dequantised on all.
    assert {type(output) for output in outputs} == ({Linear} if ranks == 4 else {ScaledLinear})
    assert isinstance(whole.mlp, Mlp)
    for parts, projection in ((downs, whole.mlp.down), (outputs, whole.output)):
        found, expected = torch.cat([dense_of(part) for part in parts], dim=1), dense_of(projection)
        assert torch.equal(found, expected)
        # The control: the columns of another rank.
        assert not torch.equal(found.roll(expected.shape[1] // 2, 1), expected)
    gates = [dense_of(mlp.gate_up).chunk(2) for mlp in mlps if isinstance(mlp, Mlp)]
    joined = torch.cat([gate for gate, _ in gates] + [up for _, up in gates])
    assert torch.equal(joined, dense_of(whole.mlp.gate_up))
