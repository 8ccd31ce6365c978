"""The checkpoint that a load test serves."""

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from hiscore.settings import Device

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write(directory: Path, device: Device, tokenizer: Path | None) -> None:
    """Write random weights: Qwen3-0.6B's geometry for a GPU, a tiny Qwen3 with its own tokenizer for a CPU.

    Args:
        directory: Where the checkpoint goes.
        device: Where it will be served.
        tokenizer: Directory whose tokenizer files the GPU's checkpoint gets, so that it can score text. The tiny
            model ignores it: its embedding is too small for another tokenizer's ids.
    """
    # In its own process, so that its GPU memory is freed.
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
