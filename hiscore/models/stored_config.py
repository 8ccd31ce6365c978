"""A checkpoint's config.json as it is stored, with what its publisher wrote into a file beside it.

Nothing here imports torch: the launcher reads configs before anything heavy is loaded.
"""

import json
from pathlib import Path
from typing import Any

from hiscore.models.text_towers import text_config

MODELOPT = "hf_quant_config.json"
"""Written by NVIDIA's Model Optimizer, whose first versions left config.json as it was."""


def stored_config(checkpoint: Path) -> dict[str, Any]:
    """Read config.json; a quantization_config that it lacks is that of `MODELOPT`."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    beside = checkpoint / MODELOPT
    if beside.is_file() and not text_config(config).get("quantization_config"):
        quantised = json.loads(beside.read_text()).get("quantization")
        of_method = quantised if isinstance(quantised, dict) else {}
        config["quantization_config"] = {**of_method, "quant_method": "modelopt"}
    return config
