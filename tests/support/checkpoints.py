"""A checkpoint's files, changed where they are."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


@contextmanager
def edited_config(checkpoint: Path) -> Iterator[dict[str, Any]]:
    """The contents of config.json, written back as they are left."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    yield config
    path.write_text(json.dumps(config))


@contextmanager
def edited_tensors(checkpoint: Path) -> Iterator[dict[str, Tensor]]:
    """The tensors of model.safetensors, likewise."""
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    yield tensors
    save_file(tensors, path, {"format": "pt"})
