"""tokenizer.json: every model and every route has a checkpoint's tokenizer from this file.

transformers makes the tokenizers of some classes anew from the vocabulary, each version in its own way. The file
says how the texts were split that the checkpoint was trained on.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hiscore.models.support import TOKENIZER_FILE, has_tokenizer, no_tokenizer


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read what the file holds, without its truncation and padding.

    Raises:
        ValueError: There is no such file, or it is not JSON.
    """
    if not has_tokenizer(checkpoint):
        raise ValueError(no_tokenizer(checkpoint))
    state: dict[str, Any] = json.loads((checkpoint / TOKENIZER_FILE).read_text("utf-8"))
    return state | {"truncation": None, "padding": None}


def read_backend(checkpoint: Path) -> Tokenizer:
    """Read the tokenizer; raises ValueError as `read_state` does."""
    backend = Tokenizer.from_str(json.dumps(read_state(checkpoint)))
    config = checkpoint / "tokenizer_config.json"
    options = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    # The one option that changes ids and is not in tokenizer.json.
    backend.encode_special_tokens = bool(options.get("split_special_tokens"))
    return backend
