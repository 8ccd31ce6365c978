"""A checkpoint's tokenizer: texts to token ids, in parts and many at a time, and back."""

from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer

__all__ = ["TextTokenizer", "load_tokenizer"]
