"""Text to token space: one query and its items become a packed layout, exactly as if each had come alone."""

from hiscore.tokenization.calls import TextCall, TokenCall, encode_calls
from hiscore.tokenization.text_tokenizer import TextTokenizer, load_tokenizer

__all__ = ["TextCall", "TextTokenizer", "TokenCall", "encode_calls", "load_tokenizer"]
