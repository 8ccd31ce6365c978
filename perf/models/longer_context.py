"""A checkpoint for longer prompts than it was trained for."""

import json
from pathlib import Path
from typing import Any


def with_context(checkpoint: Path, context: int, directory: Path) -> Path:
    """Link a checkpoint's files, beside a config.json that lengthens its context by YaRN where it is shorter.

    What such a model says is worth little; its weights are a trained model's.

    Returns:
        The new directory, or the checkpoint itself if its context is long enough.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    trained = config["max_position_embeddings"]
    if context <= trained:
        return checkpoint
    directory.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file.resolve())
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    config[key] = (config.get(key) or {}) | {
        "rope_type": "yarn",
        "factor": context / trained,
        "original_max_position_embeddings": trained,
    }
    config["max_position_embeddings"] = context
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    return directory
