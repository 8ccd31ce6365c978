"""Files that hold a checkpoint's weights: those that transformers would load."""

import json
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(checkpoint: Path) -> list[Path]:
    """The safetensors files of a checkpoint, which may be missing, or ValueError: the index is none."""
    # transformers looks at an index only where there is no single file.
    if (checkpoint / SINGLE).is_file():
        return [checkpoint / SINGLE]
    index = checkpoint / INDEX
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        plain = all(name and Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        names, plain = set(), False
    if not names or not plain:
        raise ValueError(f"'{index}' is not an index of safetensors files beside it: copy it again")
    return [checkpoint / name for name in sorted(names)]
