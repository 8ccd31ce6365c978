"""Rules for the `quantization_config` of a checkpoint: one for each method that is served.

Nothing here imports torch: the launcher applies these rules before anything heavy is loaded.
"""

import re
from collections.abc import Callable

from hiscore.models.rules import Config

SERVED = (
    "fp8 (e4m3; per tensor, per channel or in blocks), compressed-tensors (float 8, int 8, packed int "
    "4 or 8), awq (gemm, 4 bits), gptq (4 or 8 bits) and mxfp4"
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


def in_fp8(config: Config) -> bool:
    """True if weights of a checkpoint that is served are stored in fp8."""
    quantised = config.get("quantization_config") or {}
    weights = [group.get("weights") or {} for group in (quantised.get("config_groups") or {}).values()]
    return quantised.get("quant_method") == "fp8" or any(each.get("type") == "float" for each in weights)


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
        if weights.get("strategy") not in ("tensor", "channel", "group", "block"):
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


def _mxfp4(quantised: Config) -> str | None:
    return None


RULES: dict[str, Callable[[Config], str | None]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
COMPRESSED = {
    ("naive-quantized", "float", 8),
    ("float-quantized", "float", 8),
    ("naive-quantized", "int", 8),
    ("int-quantized", "int", 8),
    ("pack-quantized", "int", 4),
    ("pack-quantized", "int", 8),
}
