"""The model that a load test serves."""

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from hiscore.settings import Device

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write(directory: Path, device: Device, tokenizer: Path | None) -> None:
    """Write random weights: Qwen3-0.6B's geometry for a GPU, without one a tiny Qwen3 with a tiny tokenizer.

    tokenizer: a directory whose tokenizer files a GPU's checkpoint gets, so that text can be scored as well; the
    tiny one has its own, and no rows for another's ids.
    """
    # In a process of its own, whose GPU memory is gone when it ends.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(_geometry if device == "cuda" else _tiny, directory).result()
    if tokenizer and device == "cuda":
        for name in TOKENIZER_FILES:
            shutil.copy(tokenizer / name, directory / name)


def _geometry(directory: Path) -> None:
    from perf.models import random_checkpoint

    random_checkpoint.write("qwen3-0.6b", directory, device="cuda")


def _tiny(directory: Path) -> None:
    from tests.support import tiny_models, tiny_tokenizers

    tiny_models.make("qwen3", directory)
    tiny_tokenizers.save(tiny_tokenizers.train(tiny_tokenizers.qwen2(), tiny_models.VOCABULARY), directory)
