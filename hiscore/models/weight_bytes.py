"""Bytes of a checkpoint's weights once they are loaded, from config.json and the headers of its files.

Where weights become fp8 or stay so, the loader decides one by one: see `planned_weights`.
"""

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from hiscore.models.quantization.schemes import gptq_rules, without_scale
from hiscore.models.stored_config import stored_config
from hiscore.models.text_towers import LOOKAHEAD, OF_IMAGES
from hiscore.models.weight_files import weight_files

NUMBER_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
COMPANION = re.compile(
    r"(scales?|scale_inv|scale_2|scale_ub|zeros|zero_point|g_idx|weight_shape"
    r"|absmax|quant_map|quant_state\.\w+|SCB|weight_format)$"
)
"""Tensors stored beside a quantised weight, and gone once it is dequantised."""
BITS = {"mxfp4": 4, "awq": 4, "modelopt": 4, "bitsandbytes": 4}
"""Bits of numbers that are packed, by method; 8 otherwise."""
OF_ACTIVATIONS = re.compile(r"\.(input|output)_\w+$")
ONE_EACH = ("I8", "F8_E4M3", "F8_E5M2")
"""Dtypes of which each number is a weight, also beside packed ones."""


def weight_bytes(
    checkpoint: Path,
    number_bytes: int,
    share_of: Callable[[str], float] = lambda name: 1.0,
) -> int:
    """Bytes of all weights, dequantised, or of the share of each that `share_of` gives by its name."""
    config = stored_config(checkpoint)
    bits = _stored_bits(_quantised(config))
    unused = _lookahead(config)
    total = 0.0
    for name, dtype, shape in _tensors(checkpoint):
        if OF_IMAGES.match(name) or name.startswith(unused):
            continue
        if COMPANION.search(name):
            continue
        packed = 1 if dtype in FLOATS + ONE_EACH else NUMBER_BYTES[dtype] * 8 // bits
        total += share_of(name) * prod(shape) * packed * number_bytes
    return int(total)


def unreadable(checkpoint: Path) -> str | None:
    """Reason, from the headers, why a weight in 8 bits cannot be read; None if all can."""
    quantised = bool(_quantised(stored_config(checkpoint)))
    try:
        stored = {name: dtype for name, dtype, _ in _tensors(checkpoint) if not OF_IMAGES.match(name)}
    except ValueError as error:
        return str(error)
    companions = (name for name in stored if COMPANION.search(name) and not OF_ACTIVATIONS.search(name))
    scaled = {name.rpartition(".")[0].removesuffix(".weight") for name in companions} if quantised else ()
    for name, dtype in stored.items():
        module, _, part = name.rpartition(".")
        if NUMBER_BYTES.get(dtype) == 1 and part == "weight" and module not in scaled:
            return without_scale(name, dtype, quantised)
    return None


def _quantised(config: dict[str, Any]) -> dict[str, Any]:
    return (
        config.get("quantization_config")
        or (config.get("text_config") or {}).get("quantization_config")
        or {}
    )


def _lookahead(config: dict[str, Any]) -> tuple[str, ...]:
    """Prefixes of the layers that predict further tokens, which are not loaded."""
    layers, ahead = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    of_layers = [f"model.layers.{layers + index}." for index in range(ahead or 0)] if layers else []
    return (LOOKAHEAD, *of_layers)


def _stored_bits(quantised: dict[str, Any]) -> int:
    groups = (quantised.get("config_groups") or {}).values()
    bits = [(group.get("weights") or {}).get("num_bits") for group in groups if isinstance(group, dict)]
    bits += [own.get("bits") for own in gptq_rules(quantised).values() if own is not None]
    of_method = BITS.get(str(quantised.get("quant_method")), 8)
    return int(min(filter(None, [quantised.get("bits"), *bits]), default=of_method))


def _tensors(checkpoint: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Name, dtype and shape of every tensor. A file starts with the length of its header in 8 bytes."""
    for path in weight_files(checkpoint):
        if not path.is_file():
            continue  # the loader names it
        with path.open("rb") as file:
            try:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, path.stat().st_size)))
            except ValueError as error:
                raise ValueError(f"'{path.name}' cannot be read as safetensors: {error}") from None
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, entry["dtype"], entry["shape"]
