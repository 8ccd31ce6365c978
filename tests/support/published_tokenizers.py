"""Tokenizers as checkpoints publish them: tokenizer.json, and a class that transformers may rebuild."""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from hiscore.checkpoint.gguf.bpe_tokenizer import build_tokenizer
from tests.support import tiny_encoders, tiny_tokenizers

CHARACTERS = {"\u00a0": " ", "\u3000": " ", "…": "...", "ﬁ": "fi", "①": "1", "Ｔ": "T", "Ｈ": "H", "Ｅ": "E"}
"""A few of SentencePiece's nmt_nfkc."""
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def charsmap(characters: Mapping[str, str]) -> bytes:
    """SentencePiece's precompiled map: a trie in an array, and the texts that its leaves point to."""
    nodes: dict[bytes, int] = {b"": 0}
    for key in characters:
        for end in range(1, len(key.encode()) + 1):
            nodes.setdefault(key.encode()[:end], len(nodes))
    units, texts = [0] * 256 * (len(nodes) + 1), b""
    # A node's children are in a block of 256 of its own, and its leaf is the block's first.
    places = {node: 256 * (nodes[node[:-1]] + 1) + node[-1] if node else 0 for node in nodes}
    for node, number in nodes.items():
        block, place = 256 * (number + 1), places[node]
        is_key = node.decode(errors="ignore") in characters and bool(node)
        units[place] = (block ^ place) << 10 | is_key << 8 | (node[-1] if node else 0)
        if is_key:
            units[block] = 1 << 31 | len(texts)
            texts += characters[node.decode()].encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def precompiled(characters: Mapping[str, str]) -> dict[str, str]:
    """The step of a normalizer with such a map."""
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(characters)).decode()}


def _with_state(backend: Tokenizer, **parts: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(json.loads(backend.to_str()) | parts))


def _around(backend: Tokenizer, before: str, after: str, between: Sequence[str] = ()) -> Tokenizer:
    special = [(each, backend.token_to_id(each)) for each in {before, after}]
    pair = " ".join([before, "$A", after, *between, "$B:1", f"{after}:1"])
    backend.post_processor = processors.TemplateProcessing(f"{before} $A {after}", pair, special)
    backend.add_special_tokens([AddedToken(each, special=True) for each in (before, after)])
    return backend


def wordpiece(lowercase: bool) -> Tokenizer:
    vocabulary = tiny_encoders.wordpiece().get_vocab()
    more = ["Th", "The", "CAT", "##CAT", "##E", "##H", "T"]
    backend = Tokenizer(WordPiece(vocabulary | {each: len(vocabulary) + n for n, each in enumerate(more)}))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return _around(backend, "[CLS]", "[SEP]")


def unigram(
    special: list[str], splits_at_white_space: bool, ends: tuple[str, str], between: Sequence[str] = ()
) -> Tokenizer:
    """With SentencePiece's own map of characters, as converters write DeBERTa v3's and XLM-RoBERTa's."""
    pieces = tiny_encoders.trained_unigram(special)
    unknown = next(at for at, (piece, _) in enumerate(pieces) if piece.lower() in ("<unk>", "[unk]"))
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    steps: list[Any] = [precompiled(CHARACTERS), spaces]
    backend = _with_state(
        Tokenizer(models.Unigram(pieces, unknown)),
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [*([{"type": "WhitespaceSplit"}] if splits_at_white_space else []), mark],
        },
        decoder=mark,
    )
    return _around(backend, *ends, between)


def of_gguf() -> Tokenizer:
    """As a GGUF file is converted here."""
    backend = tiny_tokenizers.smollm2()
    added = backend.get_added_tokens_decoder()
    return build_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": [backend.id_to_token(each) for each in range(backend.get_vocab_size())],
            "tokenizer.ggml.merges": [
                " ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]
            ],
            "tokenizer.ggml.token_type": [
                TokenType.CONTROL if each in added else TokenType.NORMAL
                for each in range(backend.get_vocab_size())
            ],
        }
    )


def phi3() -> Tokenizer:
    """Its marks take the white space behind them."""
    backend = tiny_tokenizers.llama2()
    backend.add_special_tokens([AddedToken(each, rstrip=True) for each in ("<|user|>", "<|end|>")])
    return backend


def llama(build: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    """With Llama 2's decoder, which drops a text's first space."""

    def decoded() -> Tokenizer:
        backend = build()
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)]
        backend.decoder = decoders.Sequence(steps)
        return backend

    return decoded


@dataclass(frozen=True)
class Published:
    """A tokenizer, the names that its files give its class and its model, and further values of its config."""

    build: Callable[[], Tokenizer]
    tokenizer_class: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    is_encoder: bool = False

    def save(self, directory: Path) -> Path:
        backend = self.build()
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
        config = {"tokenizer_class": self.tokenizer_class, "chat_template": TEMPLATE, **self.config}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        # A reranker with a head needs no labels.
        model = {"architectures": ["AnyForSequenceClassification"], "id2label": {"0": "relevant"}}
        (directory / "config.json").write_text(json.dumps({"model_type": self.model_type, **model}))
        return directory


_XLM = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_S = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_CLS = {
    name: f"[{name[:-6].upper()}]"
    for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
}
_ROBERTA = {**_S, "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}

PUBLISHED: dict[str, Published] = {
    "SmolLM2, Granite: GPT2Tokenizer": Published(tiny_tokenizers.smollm2, "GPT2Tokenizer", "llama"),
    "GGUF: PreTrainedTokenizerFast": Published(of_gguf, "PreTrainedTokenizerFast", "llama"),
    "Falcon 3: LlamaTokenizer over byte-level BPE": Published(
        tiny_tokenizers.smollm2, "LlamaTokenizer", "llama"
    ),
    "Qwen3: Qwen2Tokenizer": Published(tiny_tokenizers.qwen2, "Qwen2Tokenizer", "qwen3"),
    "Llama 3, Nemo: PreTrainedTokenizerFast": Published(
        tiny_tokenizers.llama3, "PreTrainedTokenizerFast", "llama"
    ),
    "DeepSeek-R1-Distill-Llama: LlamaTokenizerFast over byte-level BPE": Published(
        tiny_tokenizers.llama3, "LlamaTokenizerFast", "llama", {"legacy": True}
    ),
    "DeepSeek-R1-Distill-Qwen: LlamaTokenizerFast, qwen2": Published(
        tiny_tokenizers.qwen2, "LlamaTokenizerFast", "qwen2"
    ),
    "saved by transformers 5: TokenizersBackend": Published(
        tiny_tokenizers.o200k, "TokenizersBackend", "qwen3"
    ),
    "Cohere: CohereTokenizerFast": Published(tiny_tokenizers.llama3, "CohereTokenizerFast", "cohere2"),
    "Llama 2: LlamaTokenizer, a mark before all": Published(
        llama(tiny_tokenizers.llama2), "LlamaTokenizer", "llama", {**_S, "legacy": True}
    ),
    "Mistral 7B v0.3: LlamaTokenizerFast, Metaspace first": Published(
        llama(tiny_tokenizers.metaspace_first), "LlamaTokenizerFast", "mistral", {**_S, "legacy": False}
    ),
    "Phi-3: LlamaTokenizer, phi3": Published(llama(phi3), "LlamaTokenizer", "phi3", _S),
    "Gemma: GemmaTokenizer": Published(
        tiny_tokenizers.gemma, "GemmaTokenizer", "gemma2", {"bos_token": "<s>", "eos_token": "</s>"}
    ),
    "T5's kind: Unigram": Published(tiny_tokenizers.unigram, "PreTrainedTokenizerFast", "llama"),
    "BERT, uncased": Published(
        lambda: wordpiece(True), "BertTokenizer", "bert", {**_CLS, "do_lower_case": True}, True
    ),
    "BERT, cased, which only tokenizer.json says": Published(
        lambda: wordpiece(False), "BertTokenizer", "bert", _CLS, True
    ),
    "DeBERTa v3: DebertaV2Tokenizer": Published(
        lambda: unigram(BERT_TOKENS, False, ("[CLS]", "[SEP]")),
        "DebertaV2Tokenizer",
        "deberta-v2",
        {**_CLS, "do_lower_case": False},
        True,
    ),
    "XLM-RoBERTa: XLMRobertaTokenizer": Published(
        lambda: unigram(_XLM, True, ("<s>", "</s>"), ["</s>"]),
        "XLMRobertaTokenizer",
        "xlm-roberta",
        _ROBERTA,
        True,
    ),
    "RoBERTa: RobertaTokenizer": Published(
        lambda: tiny_encoders.byte_level().backend_tokenizer, "RobertaTokenizer", "roberta", _ROBERTA, True
    ),
    "ModernBERT: PreTrainedTokenizerFast": Published(
        lambda: tiny_encoders.modern().backend_tokenizer,
        "PreTrainedTokenizerFast",
        "modernbert",
        {**_CLS, "model_input_names": ["input_ids", "attention_mask"]},
        True,
    ),
}
