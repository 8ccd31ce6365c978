"""What a checkpoint with a lightning indexer must hold, and the reasons for refusing one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.support import unsupported
from tests.support import tiny_dsa
from tests.support.checkpoints import edited_config, edited_tensors

ROUTER = "model.layers.3.mlp.gate.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_dsa.make("deepseek-experts", tmp_path)


def change_tensors(checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    with edited_tensors(checkpoint) as tensors:
        change(tensors)


def load(checkpoint: Path) -> DsaDecoder:
    return DsaDecoder(checkpoint, torch.device("cpu"), torch.float32)


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.pop(ROUTER))
    with pytest.raises(UnsupportedCheckpoint, match=f"no tensor '{ROUTER}'"):
        load(checkpoint)


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({ROUTER: tensors[ROUTER][:-1].clone()}))
    with pytest.raises(UnsupportedCheckpoint, match=rf"'{ROUTER}' has shape \[7, 64\].*announces \[8, 64\]"):
        load(checkpoint)


def test_a_tensor_that_nobody_reads_is_named(checkpoint: Path) -> None:
    name = "model.layers.0.self_attn.q_a_proj.bias"
    change_tensors(checkpoint, lambda tensors: tensors.update({name: torch.zeros(48)}))
    with pytest.raises(UnsupportedCheckpoint, match=f"1 tensors that a deepseek_v32 .*'{name}'"):
        load(checkpoint)


def test_only_announced_lookahead_layers_are_left_out(checkpoint: Path) -> None:
    change_tensors(
        checkpoint, lambda tensors: tensors.update({"model.layers.4.eh_proj.weight": torch.zeros(1)})
    )
    with pytest.raises(UnsupportedCheckpoint, match=r"model\.layers\.4\.eh_proj"):
        load(checkpoint)
    with edited_config(checkpoint) as config:
        config["num_nextn_predict_layers"] = 1
    load(checkpoint)


CONFIG = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}


def test_a_plain_config_is_served() -> None:
    assert unsupported(CONFIG) is None
    assert unsupported({**CONFIG, "rope_scaling": {"type": "yarn", "factor": 40}}) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3'"),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "quantised by fp8 with fmt"),
        ({"hidden_act": "gelu"}, "'gelu' is not silu"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, "num_key_value_heads 2"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"rope_interleave": False}, "rope_interleave is False"),
        ({"indexer_rope_interleave": "other"}, "indexer_rope_interleave is other"),
        ({"quantization_config": {"quant_method": "fp8", "scale_fmt": "int8"}}, "scale_fmt 'int8'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope type 'dynamic'"),
    ],
)
def test_what_is_not_computed_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = unsupported({**CONFIG, **changes})
    assert found is not None
    assert re.search(reason, found)
