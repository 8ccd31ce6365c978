"""Build a byte-level BPE tokenizer from GGUF metadata.

transformers can read GGUF tokenizers, too. For the default model, however, it picks another end-of-text token and
no padding token, and it does not split digits, so that spaces before a number get other ids.
"""

from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from hiscore.checkpoint.errors import CheckpointError
from hiscore.checkpoint.gguf.llama_config import Metadata

SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """Build tokenizer.json's tokenizer: vocabulary, merges, added tokens and pre-tokenizer.

    Raises:
        CheckpointError: The kind of tokenizer or pre-tokenizer is unknown.
    """
    if (kind := metadata["tokenizer.ggml.model"]) != "gpt2":
        raise CheckpointError(
            f"the GGUF file has a tokenizer of the kind '{kind}', not 'gpt2' (byte-level BPE)"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # As in the published tokenizer, the BPE has no unknown token: a byte outside the vocabulary (a few control
    # characters, unassigned planes of Unicode) gives no token.
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token=None))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata)
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True):
        if token_type == TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    _add_ends(tokenizer, metadata)
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """The content of tokenizer_config.json; without special tokens that the file does not name."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        # This class uses tokenizer.json unchanged. A model's own class would build its own tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    config.update({name: tokens[metadata[key]] for name, key in SPECIAL.items() if key in metadata})
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _pre_tokenizer(metadata: Metadata) -> pre_tokenizers.PreTokenizer:
    name = metadata["tokenizer.ggml.pre"]
    if name != "smollm":
        raise CheckpointError(f"the GGUF file splits text by the rule '{name}', not known to this conversion")
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True),
        ]
    )


def _add_ends(tokenizer: Tokenizer, metadata: Metadata) -> None:
    """Make encoding add a first or last token if the file asks for it."""
    tokens = metadata["tokenizer.ggml.tokens"]
    first = [metadata["tokenizer.ggml.bos_token_id"]] if metadata.get("tokenizer.ggml.add_bos_token") else []
    last = [metadata["tokenizer.ggml.eos_token_id"]] if metadata.get("tokenizer.ggml.add_eos_token") else []
    if first or last:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(tokens[i] for i in first), "$A", *(tokens[i] for i in last)],
            special_tokens=[(tokens[i], i) for i in (*first, *last)],
        )
