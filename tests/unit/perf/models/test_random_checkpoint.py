"""Random checkpoints: written or drawn in memory, the same weights."""

import pytest
import torch

from perf.models import random_checkpoint as geometry


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


def test_weights_in_memory_are_planned_without_being_drawn(tmp_path, monkeypatch) -> None:
    from functools import partial

    from hiscore.models.deepseek.config import read_architecture
    from hiscore.models.deepseek.loader import load_weights
    from hiscore.models.planned_weights import planned_bytes

    geometry.write("tiny-dsa", tmp_path)
    a, _ = read_architecture(tmp_path)
    load = partial(load_weights, tmp_path, a, dtype=torch.float32)
    of_files = planned_bytes(load)
    monkeypatch.delattr(geometry, "draw")
    with geometry.in_memory("cpu"):
        assert planned_bytes(load) == of_files
        # Control: what is loaded is drawn.
        with pytest.raises(NameError, match="draw"):
            load(torch.device("cpu"))
