"""Small real tokenizers, trained in a moment, one for each kind that checkpoints use.

Each builder gives a `tokenizers.Tokenizer`; `save` makes of it a directory that AutoTokenizer loads.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

from hiscore.tokenization.safe_splits import CL100K, O200K, QWEN2

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "Is this a fruit? Answer Yes or No. The item is: an apple, a hammer, 12 nails and 345 screws.",
    "I'm sure that they've said it's what we'll do; he'd agree. Don't ask.  Two  spaces   three.",
    "Yes no Yes No Maybe so. price 1999 to 2024, 3.14159 and 1,000,000!\n\nA new line.\r\n\tTabbed text",
    "def f(x):\n    return x + 1  # done\n\n\nclass A:\n        pass\n",
    "苹果是水果吗？是的，苹果是一种水果。锤子不是。これは果物ですか。はい、リンゴです。",
    "naïve café déjà vu résumé Ångström “quoted” — dash … 👩‍👩‍👧 emoji 🍎🍏 done",
    "user\nWhat is it?\nassistant\nThe answer is Yes. The answer is No. The query and the item.",
]


def train(tokenizer: Tokenizer, vocab_size: int = 700, special: list[str] = SPECIAL) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        show_progress=False,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def _byte_level(*steps: pre_tokenizers.PreTokenizer, use_regex: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)


def gpt2() -> Tokenizer:
    tokenizer = _byte_level(use_regex=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer)


def smollm2() -> Tokenizer:
    return train(_byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True))


def qwen2() -> Tokenizer:
    tokenizer = _byte_level(_split(QWEN2))
    tokenizer.normalizer = normalizers.NFC()
    train(tokenizer)
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", normalized=False), AddedToken("<think>", normalized=True)]
    )
    return tokenizer


def llama3() -> Tokenizer:
    """Puts a BOS before every text."""
    tokenizer = train(_byte_level(_split(CL100K)), special=["<|begin_of_text|>", *SPECIAL])
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def o200k() -> Tokenizer:
    return train(_byte_level(_split(O200K)))


def eos() -> Tokenizer:
    """Puts a BOS before and an EOS behind every text, as embedding and reranker checkpoints do."""
    tokenizer = train(_byte_level(_split(CL100K)))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<|im_start|>", "<|im_end|>")],
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Gemma-like: spaces become letters and nothing splits, so that merges reach across words: no safe split."""
    tokenizer = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Replace("▁", " ")
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, vocab_size=1200, special=["<unk>", "<bos>", *SPECIAL, *byte_tokens])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return tokenizer


def _marks(model: BPE | Unigram) -> Tokenizer:
    """Trained word by word, so that no piece has a mark behind another character."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    tokenizer.decoder = decoders.Metaspace()
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", "<s>", "</s>", *byte_tokens]
    trainer: trainers.Trainer
    if isinstance(model, BPE):
        trainer = trainers.BpeTrainer(vocab_size=1_000, show_progress=False, special_tokens=special)
    else:
        trainer = trainers.UnigramTrainer(
            vocab_size=1_000, show_progress=False, special_tokens=special, unk_token="<unk>"
        )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _mark_bpe() -> BPE:
    return BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)


def llama2() -> Tokenizer:
    """As checkpoints of Llama 2 and Mistral 7B have it: a mark before every text, and nothing splits."""
    tokenizer = _marks(_mark_bpe())
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _with_bos(tokenizer)


def metaspace_first() -> Tokenizer:
    """As transformers writes such tokenizers now."""
    tokenizer = _marks(_mark_bpe())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _with_bos(tokenizer)


def metaspace_always() -> Tokenizer:
    tokenizer = _marks(_mark_bpe())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return tokenizer


def gemma() -> Tokenizer:
    """No mark before a text."""
    tokenizer = _marks(_mark_bpe())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    return _with_bos(tokenizer)


def unigram() -> Tokenizer:
    """As T5 has it, without its normalizer: words by themselves."""
    return _with_bos(_marks(Unigram()))


def twice() -> Tokenizer:
    """Repeats its text, with a token between: special tokens are not simply put around a text."""
    tokenizer = train(_byte_level(_split(QWEN2)))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|> $A", special_tokens=[("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))]
    )
    return tokenizer


# Those for which splits are proved safe, and those that must be encoded in full.
WITH_PATTERNS: dict[str, Callable[[], Tokenizer]] = {
    build.__name__: build for build in (gpt2, smollm2, qwen2, llama3, o200k, eos)
}
WITH_MARKS: dict[str, Callable[[], Tokenizer]] = {
    build.__name__: build for build in (llama2, metaspace_first, metaspace_always, gemma, unigram)
}
WITH_SAFE_SPLITS = {**WITH_PATTERNS, **WITH_MARKS}
WITHOUT_SAFE_SPLITS: dict[str, Callable[[], Tokenizer]] = {
    build.__name__: build for build in (metaspace, twice)
}


def save(tokenizer: Tokenizer, directory: Path) -> Path:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    return directory
