"""Check that a directory holds a checkpoint that can be served."""

import json
from pathlib import Path

from hiscore.checkpoint.errors import CheckpointError

INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_directory(directory: Path) -> Path:
    """Return the directory if it has config.json and all of its safetensors weights.

    Tokenizer files are not required: token ids can be scored without them.

    Raises:
        CheckpointError: Names the first thing that is missing.
    """
    if not directory.is_dir():
        raise CheckpointError(f"'{directory}' is not a directory: MODEL names a Hugging Face style directory")
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"'{directory}' has no config.json: is it a Hugging Face style checkpoint?")
    if not any(directory.glob("*.safetensors")):
        raise CheckpointError(_no_weights(directory))
    for shard in _shards(directory):
        if not (directory / shard).is_file():
            raise CheckpointError(f"'{directory}' lacks '{shard}', which its {INDEX} names: copy it again")
    return directory


def _no_weights(directory: Path) -> str:
    pickles = sorted(file.name for pattern in PICKLES for file in directory.glob(pattern))
    if not pickles:
        return f"'{directory}' has no *.safetensors file: there are no weights to load"
    return (
        f"'{directory}' has its weights as pickle only ('{pickles[0]}'), which can run code when loaded and "
        "is refused: convert them to safetensors (load with transformers where you trust the file, then "
        "save_pretrained)"
    )


def _shards(directory: Path) -> list[str]:
    index = directory / INDEX
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"'{index}' is not an index of safetensors files: copy it again") from None
