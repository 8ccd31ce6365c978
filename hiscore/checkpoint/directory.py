"""Check that a directory holds a checkpoint that can be served."""

import json
from pathlib import Path
from typing import Any

from hiscore.checkpoint.errors import BadCheckpoint
from hiscore.models.stored_config import MODELOPT
from hiscore.models.weight_files import INDEX, SINGLE, weight_files

ADAPTER = "adapter_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_directory(directory: Path) -> Path:
    """Return the directory if it has config.json and all of its safetensors weights.

    Tokenizer files are not required: token ids can be scored without them.
    """
    if not directory.is_dir():
        raise BadCheckpoint(f"'{directory}' is not a directory: MODEL names a Hugging Face style directory")
    if (directory / ADAPTER).is_file():
        raise BadCheckpoint(_adapter(directory))
    if not (directory / "config.json").is_file():
        raise BadCheckpoint(f"'{directory}' has no config.json: is it a Hugging Face style checkpoint?")
    _check_json(directory / "config.json")
    if (directory / MODELOPT).is_file():
        _check_json(directory / MODELOPT)
    try:
        files = weight_files(directory)
    except ValueError as error:
        raise BadCheckpoint(str(error)) from None
    if not files:
        raise BadCheckpoint(_no_weights(directory))
    for file in files:
        if not file.is_file():
            raise BadCheckpoint(f"'{directory}' lacks '{file.name}', which its {INDEX} names: copy it again")
    return directory


def _check_json(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BadCheckpoint(f"'{file}' is not a JSON object: copy it again")
    return config


def _adapter(directory: Path) -> str:
    """Say of what model an adapter is, and what to do: transformers would load both."""
    base = _check_json(directory / ADAPTER).get("base_model_name_or_path")
    of = f" of '{base}'" if base else ""
    merge = "merge it into the weights (PEFT's merge_and_unload, then save_pretrained)"
    if (directory / "config.json").is_file():
        return (
            f"'{directory}' holds an adapter{of} ('{ADAPTER}'): {merge}, or remove the file if it is merged"
        )
    return (
        f"'{directory}' is an adapter{of} ('{ADAPTER}'), without a model: set MODEL to its model and "
        f"ADAPTERS=name={directory}, or {merge}"
    )


def _no_weights(directory: Path) -> str:
    if others := sorted(file.name for file in directory.glob("*.safetensors")):
        layout = " (Mistral's own layout)" if others[0].startswith("consolidated") else ""
        return (
            f"'{directory}' has '{others[0]}'{layout}, but neither '{SINGLE}' nor '{INDEX}', which transformers "
            "loads: choose a checkpoint in the layout of transformers, or convert this one"
        )
    pickles = sorted(file.name for pattern in PICKLES for file in directory.glob(pattern))
    if not pickles:
        return f"'{directory}' has no *.safetensors file: there are no weights to load"
    return (
        f"'{directory}' has its weights as pickle only ('{pickles[0]}'), which can run code when loaded and "
        "is refused: convert them to safetensors (load with transformers where you trust the file, then "
        "save_pretrained)"
    )
