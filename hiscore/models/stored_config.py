"""A checkpoint's config.json as it is stored, with what its publisher wrote into a file beside it.

Nothing here imports torch: the launcher reads configs before anything heavy is loaded.
"""

import json
import re
from pathlib import Path
from typing import Any

from hiscore.models.cross_encoder import Refused, read_cross_encoder
from hiscore.models.text_towers import TEXT_TOWERS, text_config

_KIND = re.compile(r"(Model|For[A-Z]\w*)$")
MODELOPT = "hf_quant_config.json"
"""Written by NVIDIA's Model Optimizer, whose first versions left config.json as it was."""


def stored_config(checkpoint: Path) -> dict[str, Any]:
    """Read config.json; a quantization_config that it lacks is that of `MODELOPT`.

    A model with a head of modules is a classifier of as many labels as that has, and `modular` names the tokens
    that the head reads: first, last or all.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    beside = checkpoint / MODELOPT
    if beside.is_file() and not text_config(config).get("quantization_config"):
        quantised = json.loads(beside.read_text()).get("quantization")
        of_method = quantised if isinstance(quantised, dict) else {}
        config["quantization_config"] = {**of_method, "quant_method": "modelopt"}
    return config | _modular(checkpoint, config)


def _modular(checkpoint: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Keys of a config.json that a head of modules changes; `refused_modules` says why it is not served."""
    name = str((config.get("architectures") or ["none"])[0])
    try:
        files = read_cross_encoder(checkpoint)
    except Refused as refused:
        # Whatever else a model can do does not depend on modules.
        return {"refused_modules": str(refused)} if name.endswith("Model") else {}
    if not files.labels:
        return {}
    if config.get("model_type") in TEXT_TOWERS:
        return {
            "refused_modules": f"modules.json: {files.head[0].kind} is not served behind models of images"
        }
    names = config.get("id2label") or {}
    if len(names) != files.labels:
        names = {str(number): f"LABEL_{number}" for number in range(files.labels)}
    classifier = f"{_KIND.sub('', name)}ForSequenceClassification"
    modes = {mode for each in files.head if each.kind == "Pooling" for mode in each.modes}
    reads = {"cls": "first", "lasttoken": "last"}.get(modes.pop(), "all") if len(modes) == 1 else "all"
    return {"architectures": [classifier], "id2label": names, "modular": reads}
