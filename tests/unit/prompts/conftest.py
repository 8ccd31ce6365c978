"""Checkpoints with every kind of tokenizer, the default model's included; no weights are needed."""

from pathlib import Path
from typing import Any

import pytest

from hiscore.checkpoint import resolve
from tests.support import tiny_tokenizers

# Not `twice`, which repeats a text even where no special tokens are to be added: no prompt can be written for it.
KINDS = {**tiny_tokenizers.WITH_SAFE_SPLITS, "metaspace": tiny_tokenizers.metaspace}


@pytest.fixture(scope="session", params=[*KINDS, pytest.param("default", marks=pytest.mark.exhaustive)])
def checkpoint(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "default":
        return resolve(progress=False)
    return tiny_tokenizers.save(KINDS[request.param](), tmp_path_factory.mktemp(request.param))
