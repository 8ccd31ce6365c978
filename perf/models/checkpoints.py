"""The checkpoint that a load test serves."""

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tokenizers import Tokenizer

from hiscore.settings import Device

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write(
    directory: Path,
    device: Device,
    tokenizer: Path | None,
    readable: bool = False,
    geometry: str = "qwen3-0.6b",
) -> None:
    """Write random weights: a model's geometry for a GPU, a tiny Qwen3 with its own tokenizer for a CPU.

    Args:
        tokenizer: Directory whose tokenizer files the GPU's checkpoint gets, so that it can score text. The tiny
            model ignores it: its embedding is too small for another tokenizer's ids.
        readable: The GPU's checkpoint gets that tokenizer's vocabulary, so that all it generates is text.
        geometry: Of the GPU's checkpoint, a name in `perf.models.geometries`.
    """
    vocabulary = None
    if readable and tokenizer:
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    # In its own process, so that its GPU memory is freed.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        if device == "cuda":
            pool.submit(_geometry, geometry, directory, vocabulary).result()
        else:
            pool.submit(_tiny, directory).result()
    if tokenizer and device == "cuda":
        for name in TOKENIZER_FILES:
            shutil.copy(tokenizer / name, directory / name)


def _geometry(name: str, directory: Path, vocabulary: int | None) -> None:
    from perf.models import random_checkpoint

    config = random_checkpoint.config_of(name)
    if vocabulary:
        config["vocab_size"] = vocabulary
    random_checkpoint.save(config, directory, device="cuda")


def _tiny(directory: Path) -> None:
    from tests.support import tiny_models, tiny_tokenizers

    tiny_models.make("qwen3", directory)
    tiny_tokenizers.save(tiny_tokenizers.train(tiny_tokenizers.qwen2(), tiny_models.VOCABULARY), directory)
