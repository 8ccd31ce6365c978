"""Bytes of weights from headers, against the tensors that are then loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.models.decoder import Decoder
from hiscore.models.weight_bytes import weight_bytes
from tests.support import quantised, tiny_models
from tests.support.quantised import SCHEMES
from tests.support.tiny_models import FAMILIES
from tests.support.weights import held


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_take_what_the_headers_say(family: str, checkpoints: Any) -> None:
    checkpoint, _ = checkpoints(family)
    weights = Decoder(checkpoint, torch.device("cpu"), torch.float32).weights
    assert sum(held(weights).values()) == weight_bytes(checkpoint, 4)
    # In bfloat16 all but the norms, which stay in float32, take half.
    half = Decoder(checkpoint, torch.device("cpu"), torch.bfloat16).weights
    assert weight_bytes(checkpoint, 2) <= sum(held(half).values()) < 1.05 * weight_bytes(checkpoint, 2)


def test_what_is_counted_are_the_files_that_are_loaded(checkpoints: Any, tmp_path: Path) -> None:
    source, _ = checkpoints("llama")
    whole = weight_bytes(source, 4)
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    # Beside a single file shards are never opened.
    shard = tmp_path / "model-00001-of-00001.safetensors"
    shutil.copy(tmp_path / "model.safetensors", shard)
    assert weight_bytes(tmp_path, 4) == whole
    # Shards may have any names; the index says them.
    (tmp_path / "model.safetensors").unlink()
    shard.rename(tmp_path / "weights.safetensors")
    index = {"weight_map": {"model.norm.weight": "weights.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path, 4) == whole


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_weights_count_as_what_they_become(scheme: str, tmp_path: Path) -> None:
    dense = tiny_models.make("llama-biased", tmp_path / "dense")
    checkpoint = quantised.make(dense, SCHEMES[scheme](), tmp_path / "quantised", ("layers.1.self_attn",))
    assert weight_bytes(checkpoint, 2) == weight_bytes(dense, 2)
