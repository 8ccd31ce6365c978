"""Random checkpoints: written or drawn in memory, the same weights."""

import pytest
import torch

from perf.models import random_checkpoint as geometry


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid", "tiny-dsa"])
def test_weights_in_memory_are_those_of_the_file(name: str, tmp_path) -> None:
    """The strict loader reads all of both; a seed apart they differ."""
    from hiscore.models.decoder import Decoder
    from hiscore.models.deepseek.decoder import DsaDecoder

    kind = DsaDecoder if name == "tiny-dsa" else Decoder
    geometry.write(name, tmp_path)
    loaded = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    with geometry.in_memory("cpu"):
        drawn = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    with geometry.in_memory("cpu", seed=1):
        other = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    assert torch.equal(loaded, drawn)
    assert not torch.equal(drawn, other)
