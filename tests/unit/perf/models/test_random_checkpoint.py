"""Random checkpoints: written or drawn in memory, the same weights."""

import pytest
import torch

from perf.models import random_checkpoint as geometry
from perf.models.geometries import with_layers


@pytest.mark.parametrize("name", ["tiny", "tiny-dsa"])
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


@pytest.mark.parametrize("keeps_fp8", [False, True])
def test_weights_in_fp8_are_those_of_the_file(keeps_fp8: bool, tmp_path) -> None:
    """They are read as DeepSeek publishes them, and nearly those that are drawn in 16 bits."""
    from hiscore.layers.scaled_fp8 import ScaledLinear, dequantise
    from hiscore.models.deepseek.decoder import DsaDecoder

    config = with_layers(geometry.config_of("tiny-deepseek"), 1, 1)
    cpu = torch.device("cpu")
    geometry.save(config, tmp_path / "fp8")
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    geometry.save(plain, tmp_path / "plain")

    def down(name: str) -> torch.Tensor:
        layers = DsaDecoder(tmp_path / name, cpu, torch.float32, keeps_fp8=keeps_fp8).weights.layers
        down = layers[0].mlp.down
        assert isinstance(down, ScaledLinear) == (keeps_fp8 and name == "fp8")
        return dequantise(down.values, down.scales) if isinstance(down, ScaledLinear) else down.weight

    loaded = down("fp8")
    with geometry.in_memory("cpu"):
        drawn = down("fp8")
    assert torch.equal(loaded, drawn)
    # e4m3 has three bits behind the first; below its normal numbers they are 2^-9 apart.
    truth = down("plain")
    assert ((loaded - truth).abs() <= truth.abs() / 16 + geometry.SCALE * 2**-10).all()
    assert not torch.equal(loaded, truth)


def test_weights_in_memory_are_planned_without_being_drawn(tmp_path, monkeypatch) -> None:
    from functools import partial

    from hiscore.models.deepseek.config import read_architecture
    from hiscore.models.deepseek.loader import load_weights
    from hiscore.models.planned_weights import planned_bytes

    config = with_layers(geometry.config_of("tiny-deepseek"), 1, 1)
    geometry.save(config, tmp_path)
    a, _ = read_architecture(tmp_path)
    load = partial(load_weights, tmp_path, a, dtype=torch.float32, keeps_fp8=True)
    of_files = planned_bytes(load)
    monkeypatch.delattr(geometry, "draw")
    with geometry.in_memory("cpu"):
        assert planned_bytes(load) == of_files
        # Control: what is loaded is drawn.
        with pytest.raises(NameError, match="draw"):
            load(torch.device("cpu"))
