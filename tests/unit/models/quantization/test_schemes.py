"""Which quantization_config is served, and what is said of the others."""

import re
from typing import Any

import pytest

from hiscore.models.quantization.schemes import in_fp8, unserved
from tests.support.quantised import SCHEMES

WEIGHTS = {"type": "float", "num_bits": 8, "strategy": "channel"}


def compressed(form: str | None = "float-quantized", **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def mixed(*algorithms: str) -> dict[str, Any]:
    layers = {f"model.layers.{index}": {"quant_algo": name} for index, name in enumerate(algorithms)}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_read_is_served(scheme: str) -> None:
    assert unserved({"quantization_config": SCHEMES[scheme]().config}) is None


def test_what_may_stay_in_fp8_is_told_from_what_may_not() -> None:
    stays = {scheme for scheme in SCHEMES if in_fp8({"quantization_config": SCHEMES[scheme]().config})}
    assert stays == {scheme for scheme in SCHEMES if "fp8" in scheme}
    assert in_fp8({"quantization_config": mixed("FP8", "NVFP4")})


def test_weights_that_are_not_quantised_are_served() -> None:
    assert unserved({}) is unserved({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("quantised", "says"),
    [
        ({"quant_method": "torchao"}, "quantised by 'torchao'; served are fp8"),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"}, "_storage 'bfloat16'"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "modelopt with quant_algo 'MXFP8'"),
        (mixed("FP8", "W4A8_AWQ"), "modelopt with quant_algo 'W4A8_AWQ'"),
        (mixed("FP8", "fp8_pb_wo"), "of which one has blocks"),
        ({"bits": 4}, "quantised by 'unknown'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 with fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"fp8 with weight_block_size \[128\]"),
        ({"quant_method": "awq", "version": "gemv"}, "awq with the 'gemv' layout"),
        ({"quant_method": "awq", "backend": "llm-awq"}, "layout of llm-awq"),
        ({"quant_method": "awq", "bits": 8}, "awq with 8 bits"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq with the 'marlin' layout"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 3}}}, "gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}, r"the expression '\(' in dynamic"),
        (compressed("nvfp4-pack-quantized"), "float weights of 8 bits in format 'nvfp4"),
        (compressed("nvfp4-pack-quantized", num_bits=4), "strategy 'channel' of float weights of 4 bits"),
        (
            compressed("pack-quantized", type="int", num_bits=3),
            "int weights of 3 bits in format 'pack-quantized'",
        ),
        (compressed(strategy="tensor_group"), "strategy 'tensor_group'"),
        (compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity format 'sparse-24"),
        (compressed() | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        (compressed() | {"config_groups": {"FP8_DYNAMIC": ["Linear"]}}, "preset"),
        (compressed() | {"config_groups": {"group_0": {"targets": ["Linear"]}}}, "a group without weights"),
    ],
)
def test_what_is_not_read_is_refused_by_name(quantised: dict[str, Any], says: str) -> None:
    assert re.search(says, str(unserved({"quantization_config": quantised})))


def test_a_format_of_a_group_goes_before_that_of_the_config() -> None:
    mixed = compressed("mixed-precision")
    assert "mixed-precision" in str(unserved({"quantization_config": mixed}))
    mixed["config_groups"]["group_0"]["format"] = "float-quantized"
    assert unserved({"quantization_config": mixed}) is None
