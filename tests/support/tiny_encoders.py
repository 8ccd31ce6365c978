"""Small random encoders of every family with a tokenizer of their own kind, for comparison with transformers.

As in `tiny_models`, everything that a checkpoint holds is random, biases and norms included.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram, WordPiece
from transformers import (
    AutoConfig,
    BertTokenizerFast,
    DebertaV2Tokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
    XLMRobertaTokenizer,
)

from tests.support import published_new
from tests.support.checkpoints import edited_config
from tests.support.tiny_tokenizers import CORPUS

OF_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
"""The names of special tokens in a tokenizer's config."""
VOCABULARY = 500
"""Rows of the embedding, at least; trained vocabularies may be smaller."""
CONTEXT = 160
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}


def wordpiece() -> Any:
    """BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return BertTokenizerFast(vocab=tokenizer.get_vocab())


def distilled() -> Any:
    """DistilBERT's: BERT's without token types."""
    tokenizer = wordpiece()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def byte_level() -> Any:
    """RoBERTa's."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary, merges = _trained_bpe(special)
    return RobertaTokenizerFast(vocab=vocabulary, merges=merges)


def _trained_bpe(special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def modern() -> Any:
    """ModernBERT's: byte-level BPE with BERT's special tokens and no token types."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary, merges = _trained_bpe(special)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ids = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **OF_BERT)


def trained_unigram(special: list[str]) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>" if "<unk>" in special else "[UNK]",
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]


def sentencepiece() -> Any:
    """XLM-RoBERTa's: two separators between the texts of a pair."""
    return XLMRobertaTokenizer(vocab=trained_unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))


def deberta() -> Any:
    """DeBERTa's."""
    return DebertaV2Tokenizer(vocab=trained_unigram(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))


@dataclass(frozen=True)
class Tiny:
    """A family, the changes to `SIZES`, and how its tokenizer is made."""

    model_type: str
    tokenizer: Callable[[], Any]
    changes: dict[str, Any]

    @property
    def config(self) -> Any:
        return AutoConfig.for_model(self.model_type, **{**SIZES, **self.changes})

    @property
    def has_types(self) -> bool:
        """True if it tells token types apart."""
        return getattr(self.config, "type_vocab_size", 0) > 1

    @property
    def reads_all(self) -> bool:
        """True if its head reads all tokens of a pair."""
        return getattr(self.config, "classifier_pooling", None) in ("mean", "late")


DISENTANGLED = {
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
BIASED = {"attention_bias": True, "mlp_bias": True}
OF_MODERN = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
FOLLOWS_PAD = {
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "max_position_embeddings": CONTEXT + 2,
}


def tiny(model_type: str, tokenizer: Callable[[], Any], **changes: Any) -> Tiny:
    return Tiny(model_type, tokenizer, changes)


# Windows far shorter than the pairs of the tests, so that a wrong one shows.
ENCODERS: dict[str, Tiny] = {
    "bert": tiny("bert", wordpiece),
    "roberta": tiny("roberta", byte_level, type_vocab_size=1, hidden_act="relu", **FOLLOWS_PAD),
    "xlm-roberta": tiny("xlm-roberta", sentencepiece, type_vocab_size=1, **FOLLOWS_PAD),
    "camembert": tiny("camembert", sentencepiece, type_vocab_size=1, **FOLLOWS_PAD),
    "electra": tiny("electra", wordpiece, embedding_size=64),
    "distilbert": tiny("distilbert", distilled, hidden_dim=96),
    "albert": tiny(
        "albert", wordpiece, embedding_size=32, num_hidden_groups=2, inner_group_num=2, hidden_act="gelu_new"
    ),
    "mpnet": tiny("mpnet", byte_level, **FOLLOWS_PAD),
    "eurobert": tiny("eurobert", modern, num_key_value_heads=2, **OF_MODERN),
    "eurobert-mean": tiny(
        "eurobert",
        modern,
        classifier_pooling="mean",
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
        **{**BIASED, **OF_MODERN},
    ),
    "eurobert-bos": tiny(
        "eurobert", modern, classifier_pooling="bos", num_key_value_heads=1, attention_bias=True, **OF_MODERN
    ),
    "new": tiny("new", sentencepiece, pad_token_id=1, **published_new.PUBLISHED),
    "new-types": tiny("new", wordpiece, type_vocab_size=2, hidden_act="relu", **published_new.PUBLISHED),
    "modernbert": tiny(
        "modernbert", modern, local_attention=8, num_hidden_layers=4, pad_token_id=3, cls_token_id=1
    ),
    "modernbert-mean": tiny(
        "modernbert",
        modern,
        **{"local_attention": 9, "classifier_pooling": "mean", "classifier_activation": "silu"},
        **{**BIASED, "norm_bias": True, "classifier_bias": True, "pad_token_id": 3},
    ),
    "deberta-v3": tiny("deberta-v2", deberta, **DISENTANGLED),
    "deberta-v2": tiny(
        "deberta-v2",
        deberta,
        **{
            **DISENTANGLED,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "position_buckets": -1,
            "max_relative_positions": 24,
            "position_biased_input": True,
            "type_vocab_size": 2,
            "pooler_hidden_act": "tanh",
        },
    ),
    "deberta-c2p": tiny(
        "deberta-v2", deberta, **{**DISENTANGLED, "pos_att_type": "c2p", "embedding_size": 32}
    ),
    "deberta-absolute": tiny("deberta-v2", deberta, type_vocab_size=0, pos_att_type=["c2p"]),
}


def make(
    name: str, directory: Path, labels: int = 1, seed: int = 0, of: str = "SequenceClassification"
) -> Path:
    tiny = ENCODERS[name]
    config = tiny.config
    config.num_labels = labels
    torch.manual_seed(seed)
    kind = getattr(transformers, f"AutoModelFor{of}")
    model = kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            # Wide enough that scores differ from item to item by far more than any tolerance.
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            is_norm = name_.endswith("weight") and parameter.ndim == 1
            parameter.normal_(1.0 if is_norm else 0.0, spread)
    model.save_pretrained(directory)
    if tiny.model_type == "new":
        # As published, not as the config class expresses it.
        with edited_config(directory) as stored:
            stored |= published_new.PUBLISHED
            del stored["rope_parameters"]
    tiny.tokenizer().save_pretrained(directory)
    return directory
