"""Rules for the `quantization_config` of a checkpoint: one for each method that is served.

Nothing here imports torch: the launcher applies these rules before anything heavy is loaded.
"""

import re
from collections.abc import Callable

from hiscore.models.rules import Config
from hiscore.models.stored_config import MODELOPT as BESIDE

SERVED = (
    "fp8 and fbgemm_fp8 (e4m3; per tensor, per channel or in blocks), modelopt (FP8 and NVFP4), "
    "compressed-tensors (float 8, int 8, NVFP4, packed int 4 or 8), bitsandbytes (nf4, fp4 and int8), awq (gemm, "
    "4 bits), gptq (4 or 8 bits) and mxfp4"
)


def unserved(config: Config) -> str | None:
    """Reason why the quantised weights of this config.json cannot be read; None if they can, or there are none."""
    if not (quantised := config.get("quantization_config")):
        return None
    method = str(quantised.get("quant_method", "unknown"))
    if method not in RULES:
        return f"its weights are quantised by '{method}'; served are {SERVED}"
    reason = RULES[method](quantised)
    return f"its weights are quantised by {method} with {reason}; served are {SERVED}" if reason else None


def without_scale(name: str, dtype: str, quantised: bool) -> str:
    """Say that a weight cannot be read for want of a scale, or of a config that says what its scale means."""
    if quantised:
        return f"'{name}' is {dtype}, and the checkpoint holds no scale for it"
    return (
        f"'{name}' is {dtype}, and neither config.json (quantization_config) nor {BESIDE} says how to read it"
    )


def in_fp8(config: Config) -> bool:
    """True if weights of a checkpoint that is served are stored in fp8."""
    quantised = config.get("quantization_config") or {}
    method = quantised.get("quant_method")
    if method == "modelopt":
        return any(algorithm.startswith("FP8") for algorithm in modelopt_algorithms(quantised))
    weights = [group.get("weights") or {} for group in (quantised.get("config_groups") or {}).values()]
    return method in ("fp8", "fbgemm_fp8") or any(
        (each.get("type"), each.get("num_bits")) == ("float", 8) for each in weights
    )


def _fp8(quantised: Config) -> str | None:
    block = quantised.get("weight_block_size")
    if block is not None and (len(block) != 2 or min(block) < 1):
        return f"weight_block_size {block}"
    if (fmt := quantised.get("fmt", "e4m3")) != "e4m3":
        return f"fmt '{fmt}'"
    if (scales := quantised.get("scale_fmt")) not in (None, "ue8m0"):
        return f"scale_fmt '{scales}'"
    return None


def _compressed_tensors(quantised: Config) -> str | None:
    if (sparsity := (quantised.get("sparsity_config") or {}).get("format", "dense")) != "dense":
        return f"sparsity format '{sparsity}'"
    if quantised.get("transform_config"):
        return "transform_config"
    for group in (quantised.get("config_groups") or {}).values():
        if isinstance(group, list):
            return "a scheme given by its preset's name"
        form = group.get("format") or quantised.get("format")
        weights = group.get("weights") or {}
        described = f"{weights.get('type')} weights of {weights.get('num_bits')} bits in format '{form}'"
        if not weights:
            return "a group without weights"
        if (form, weights.get("type"), weights.get("num_bits")) not in COMPRESSED:
            return described
        strategies = ("tensor_group",) if form == NVFP4 else ("tensor", "channel", "group", "block")
        if weights.get("strategy") not in strategies:
            return f"strategy '{weights.get('strategy')}' of {described}"
    return None


def _awq(quantised: Config) -> str | None:
    layout = str(quantised.get("version") or quantised.get("format") or "gemm").lower()
    if layout != "gemm" or quantised.get("backend") == "llm-awq":
        return f"the '{layout}' layout of {quantised.get('backend') or 'its tensors'}"
    return None if quantised.get("bits", 4) == 4 else f"{quantised['bits']} bits"


def _gptq(quantised: Config) -> str | None:
    layout = str(quantised.get("checkpoint_format") or quantised.get("format") or "gptq").lower()
    if layout not in ("gptq", "gptq_v2"):
        return f"the '{layout}' layout"
    rules = gptq_rules(quantised)
    for pattern in rules:
        try:
            re.compile(pattern)
        except re.error as error:
            return f"the expression '{pattern}' in dynamic: {error}"
    own = [each for each in rules.values() if each is not None]
    for bits in (quantised.get("bits"), *(each["bits"] for each in own if "bits" in each)):
        if bits not in (4, 8):
            return f"{bits} bits"
    return None


def gptq_rules(quantised: Config) -> dict[str, Config | None]:
    """Settings of modules in GPTQModel's `dynamic`, by expressions: the first that matches counts.

    None: the modules are left unquantised; else settings that replace those of all.
    """
    rules = quantised.get("dynamic") or {}
    return {
        pattern.removeprefix("+:").removeprefix("-:"): None if pattern.startswith("-:") else dict(own or {})
        for pattern, own in rules.items()
    }


def _modelopt(quantised: Config) -> str | None:
    algorithms = modelopt_algorithms(quantised)
    if unknown := sorted(algorithms - MODELOPT):
        return f"quant_algo '{unknown[0]}'"
    return (
        "several quant_algo, of which one has blocks"
        if "FP8_PB_WO" in algorithms and len(algorithms) > 1
        else None
    )


def modelopt_algorithms(quantised: Config) -> set[str]:
    """Formats of weights that Model Optimizer names; empty if only the KV cache is quantised."""
    layers = (quantised.get("quantized_layers") or {}).values()
    named = [each.get("quant_algo") for each in layers] or [quantised.get("quant_algo")]
    return {str(name).upper() for name in named if name}


def _bitsandbytes(quantised: Config) -> str | None:
    if quantised.get("load_in_8bit"):
        return None
    if (kind := quantised.get("bnb_4bit_quant_type", "fp4")) not in ("nf4", "fp4"):
        return f"bnb_4bit_quant_type '{kind}'"
    storage = quantised.get("bnb_4bit_quant_storage") or "uint8"
    return None if storage == "uint8" else f"bnb_4bit_quant_storage '{storage}'"


RULES: dict[str, Callable[[Config], str | None]] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda quantised: None,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": lambda quantised: None,
}
MODELOPT = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8"}
NVFP4 = "nvfp4-pack-quantized"
COMPRESSED = {
    ("naive-quantized", "float", 8),
    ("float-quantized", "float", 8),
    ("naive-quantized", "int", 8),
    ("int-quantized", "int", 8),
    ("pack-quantized", "int", 4),
    ("pack-quantized", "int", 8),
    (NVFP4, "float", 4),
}
