"""Tokenizers as checkpoints publish them: tokenizer.json, and a class that transformers may rebuild."""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from hiscore.checkpoint.conversion import build_tokenizer
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
    added, ids = backend.get_added_tokens_decoder(), range(backend.get_vocab_size())
    kinds = [TokenType.CONTROL if each in added else TokenType.NORMAL for each in ids]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    lists = {"tokens": list(map(backend.id_to_token, ids)), "merges": merges, "token_type": kinds}
    return build_tokenizer({f"tokenizer.ggml.{name}": value for name, value in lists.items()})


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
    config: dict[str, Any]
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


def decoder(build: Callable[[], Tokenizer], name: str, model: str = "llama", **config: Any) -> Published:
    return Published(build, name, model, config)


def encoder(build: Callable[[], Tokenizer], name: str, model: str, **config: Any) -> Published:
    return Published(build, name, model, config, is_encoder=True)


def _deberta() -> Tokenizer:
    return unigram(BERT_TOKENS, False, ("[CLS]", "[SEP]"))


def _xlm_roberta() -> Tokenizer:
    return unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], True, ("<s>", "</s>"), ["</s>"])


def _roberta() -> Tokenizer:
    return tiny_encoders.byte_level().backend_tokenizer


def _modern() -> Tokenizer:
    return tiny_encoders.modern().backend_tokenizer


_ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
_S = {**_ENDS, "unk_token": "<unk>"}
_CLS = tiny_encoders.OF_BERT
_ROBERTA = {**_S, "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
_FAST = "PreTrainedTokenizerFast"
_INPUTS = ["input_ids", "attention_mask"]

PUBLISHED: dict[str, Published] = {
    "SmolLM2, Granite: GPT2Tokenizer": decoder(tiny_tokenizers.smollm2, "GPT2Tokenizer"),
    "GGUF: PreTrainedTokenizerFast": decoder(of_gguf, _FAST),
    "Falcon 3: LlamaTokenizer over byte-level BPE": decoder(tiny_tokenizers.smollm2, "LlamaTokenizer"),
    "Qwen3: Qwen2Tokenizer": decoder(tiny_tokenizers.qwen2, "Qwen2Tokenizer", "qwen3"),
    "Llama 3, Nemo: PreTrainedTokenizerFast": decoder(tiny_tokenizers.llama3, _FAST),
    "DeepSeek-R1-Distill-Llama: LlamaTokenizerFast over byte-level BPE": decoder(
        tiny_tokenizers.llama3, "LlamaTokenizerFast", legacy=True
    ),
    "DeepSeek-R1-Distill-Qwen: LlamaTokenizerFast, qwen2": decoder(
        tiny_tokenizers.qwen2, "LlamaTokenizerFast", "qwen2"
    ),
    "saved by transformers 5: TokenizersBackend": decoder(
        tiny_tokenizers.o200k, "TokenizersBackend", "qwen3"
    ),
    "Cohere: CohereTokenizerFast": decoder(tiny_tokenizers.llama3, "CohereTokenizerFast", "cohere2"),
    "Llama 2: LlamaTokenizer, a mark before all": decoder(
        llama(tiny_tokenizers.llama2), "LlamaTokenizer", **_S, legacy=True
    ),
    "Mistral 7B v0.3: LlamaTokenizerFast, Metaspace first": decoder(
        llama(tiny_tokenizers.metaspace_first), "LlamaTokenizerFast", "mistral", **_S, legacy=False
    ),
    "Phi-3: LlamaTokenizer, phi3": decoder(llama(phi3), "LlamaTokenizer", "phi3", **_S),
    "Gemma: GemmaTokenizer": decoder(tiny_tokenizers.gemma, "GemmaTokenizer", "gemma2", **_ENDS),
    "T5's kind: Unigram": decoder(tiny_tokenizers.unigram, _FAST),
    "BERT, uncased": encoder(partial(wordpiece, True), "BertTokenizer", "bert", **_CLS, do_lower_case=True),
    "BERT, cased, which only tokenizer.json says": encoder(
        partial(wordpiece, False), "BertTokenizer", "bert", **_CLS
    ),
    "DeBERTa v3: DebertaV2Tokenizer": encoder(
        _deberta, "DebertaV2Tokenizer", "deberta-v2", **_CLS, do_lower_case=False
    ),
    "XLM-RoBERTa: XLMRobertaTokenizer": encoder(
        _xlm_roberta, "XLMRobertaTokenizer", "xlm-roberta", **_ROBERTA
    ),
    "RoBERTa: RobertaTokenizer": encoder(_roberta, "RobertaTokenizer", "roberta", **_ROBERTA),
    "ModernBERT: PreTrainedTokenizerFast": encoder(
        _modern, _FAST, "modernbert", **_CLS, model_input_names=_INPUTS
    ),
}
