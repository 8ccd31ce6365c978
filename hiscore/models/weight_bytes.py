"""Bytes of a checkpoint's weights once they are loaded, from config.json and the headers of its files.

Where weights become fp8 or stay so, the loader decides one by one: see `planned_weights`.
"""

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from hiscore.models.quantization.schemes import gptq_rules
from hiscore.models.text_towers import OF_IMAGES
from hiscore.models.weight_files import weight_files

NUMBER_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
COMPANION = re.compile(r"(scales?|scale_inv|zeros|zero_point|g_idx|weight_shape)$")
"""Tensors stored beside a quantised weight, and gone once it is dequantised."""
BITS = {"fp8": 8, "mxfp4": 4, "awq": 4}


def weight_bytes(
    checkpoint: Path,
    number_bytes: int,
    share_of: Callable[[str], float] = lambda name: 1.0,
) -> int:
    """Bytes of all weights, dequantised, or of the share of each that `share_of` gives by its name."""
    config = json.loads((checkpoint / "config.json").read_text())
    quantised = config.get("quantization_config") or (config.get("text_config") or {}).get(
        "quantization_config"
    )
    bits = _stored_bits(quantised or {})
    unused = _lookahead(config)
    total = 0.0
    for name, dtype, shape in _tensors(checkpoint):
        if OF_IMAGES.match(name) or name.startswith(unused):
            continue
        if COMPANION.search(name):
            continue
        packed = 1 if dtype in FLOATS else NUMBER_BYTES[dtype] * 8 // bits
        total += share_of(name) * prod(shape) * packed * number_bytes
    return int(total)


def _lookahead(config: dict[str, Any]) -> tuple[str, ...]:
    """Prefixes of the layers that predict further tokens, which are not loaded."""
    layers, ahead = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    return tuple(f"model.layers.{layers + index}." for index in range(ahead or 0)) if layers else ()


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
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            except ValueError as error:
                raise ValueError(f"'{path.name}' cannot be read as safetensors: {error}") from None
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, entry["dtype"], entry["shape"]
