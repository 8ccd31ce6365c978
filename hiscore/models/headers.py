"""Says from the headers of a checkpoint's files, before a start, that a weight cannot be read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from hiscore.models.quantization.schemes import without_scale
from hiscore.models.stored_config import stored_config
from hiscore.models.text_towers import OF_IMAGES
from hiscore.models.weight_files import weight_files

ONE_BYTE = ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0")
COMPANION = re.compile(
    r"(?<!router\.)(?<!per_expert_)(scales?|scale_inv|scale_2|scale_ub|zeros|zero_point|g_idx|weight_shape"
    r"|absmax|quant_map|quant_state\.\w+|SCB|weight_format)$"
)
"""Tensors stored beside a quantised weight, and gone once that is dequantised; Gemma 4's routers have some."""
OF_ACTIVATIONS = re.compile(r"\.(input|output)_\w+$")


def unreadable(checkpoint: Path) -> str | None:
    """Reason, from the headers, why a weight in 8 bits cannot be read; None if all can."""
    config = stored_config(checkpoint)
    quantised = any((of or {}).get("quantization_config") for of in (config, config.get("text_config")))
    try:
        stored = {name: dtype for name, dtype in _tensors(checkpoint) if not OF_IMAGES.match(name)}
    except ValueError as error:
        return str(error)
    companions = (name for name in stored if COMPANION.search(name) and not OF_ACTIVATIONS.search(name))
    scaled = {name.rpartition(".")[0].removesuffix(".weight") for name in companions} if quantised else ()
    for name, dtype in stored.items():
        module, _, part = name.rpartition(".")
        if dtype in ONE_BYTE and part == "weight" and module not in scaled:
            return without_scale(name, dtype, quantised)
    return None


def _tensors(checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Name and dtype of every tensor. A file starts with the length of its header in 8 bytes."""
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
                yield name, entry["dtype"]
