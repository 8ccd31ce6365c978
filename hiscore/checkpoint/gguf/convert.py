"""Convert a Llama model from a GGUF file (llama.cpp's format) to a Hugging Face style directory.

Everything comes from the file's metadata. Unknown metadata is an error, never a guess: a model that loads but
scores wrongly is the worst outcome.
"""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from hiscore.checkpoint.errors import CheckpointError
from hiscore.checkpoint.gguf.bpe_tokenizer import build_tokenizer, tokenizer_config
from hiscore.checkpoint.gguf.llama_config import Metadata, generation_config, llama_config
from hiscore.checkpoint.gguf.llama_weights import llama_weights
from hiscore.checkpoint.progress import byte_bar


def convert(gguf: Path, directory: Path, *, progress: bool = True) -> None:
    """Write model.safetensors (float32), the configs and the tokenizer.

    The weights are float32 because a Q4_1 weight is scale x 4 bits + minimum, with 11 bits for scale and minimum.
    That does not fit the 8 bits of a bfloat16, and not always the 11 of a float16. Serving in bfloat16 rounds
    once, when the weights are loaded.

    Raises:
        CheckpointError: The file contains something that this conversion does not know.
        OSError: The directory cannot be written, or its disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf)
    metadata = Metadata({name: field.contents() for name, field in reader.fields.items()})
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = llama_config(metadata, tied=tied)
    total = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)
    with byte_bar("Converting to safetensors", total, show=progress) as advance:
        weights = llama_weights(reader.tensors, config, advance)
    if len(weights["model.embed_tokens.weight"]) != config["vocab_size"]:
        raise CheckpointError("the GGUF file has another number of embeddings than of tokens")
    try:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        # A full disk, for example: the cache explains errors of the operating system.
        raise OSError(str(error)) from error
    # safetensors makes files readable for their owner only, but others may use the cache, too.
    (directory / "model.safetensors").chmod(0o644)
    # Not with the tokenizer's own `save`, which hides errors of the operating system.
    (directory / "tokenizer.json").write_text(build_tokenizer(metadata).to_str(pretty=True), "utf-8")
    _write_json(directory / "tokenizer_config.json", tokenizer_config(metadata))
    _write_json(directory / "generation_config.json", generation_config(config))
    _write_json(directory / "config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
