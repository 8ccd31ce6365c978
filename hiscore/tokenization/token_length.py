"""The most text that one token can stand for: a text of more has too many tokens, however it is encoded."""

import math
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from hiscore.tokenization.split_rule import state

# NFC makes of three code points, of three bytes each, at most one of three bytes.
NFC_SHRINKS_BY = 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def max_bytes_per_token(backend: Tokenizer) -> int | None:
    """Measure the longest token in bytes of UTF-8, for tokenizers that lose no text; others give None.

    No text is lost by byte-level BPE, and by BPE with a token for every byte that is in no other piece: nothing
    becomes an unknown token, which stands for any number of characters. Normalizers may add marks; NFC shortens a
    text by a bounded factor.
    """
    model = backend.model
    if not isinstance(model, BPE):
        return None
    splits = _steps(backend.pre_tokenizer, "pretokenizers")
    in_letters = "ByteLevel" in {step["type"] for step in splits} and _has_all(model, ByteLevel.alphabet())
    by_byte = in_letters or (model.byte_fallback and _has_all(model, BYTES))
    factors = [_shrinks_by(step) for step in _steps(backend.normalizer, "normalizers")]
    shrinks = [factor for factor in factors if factor is not None]
    added = backend.get_added_tokens_decoder().values()
    takes_spaces = any(token.lstrip or token.rstrip for token in added)
    if not by_byte or not all(map(_keeps_text, splits)) or len(shrinks) < len(factors) or takes_spaces:
        return None
    # In byte-level pieces each letter is a byte.
    size = len if in_letters else _bytes
    pieces = map(size, backend.get_vocab(with_added_tokens=False))
    longest = max([1, *pieces, *(_bytes(token.content) for token in added)])
    return math.prod(shrinks) * longest


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    """List the steps of a normalizer or pre-tokenizer, which may be a sequence of them."""
    whole = state(part)
    steps: list[dict[str, Any]] = whole.get(name, [whole] if whole else [])
    return steps


def _has_all(model: BPE, pieces: Iterable[str]) -> bool:
    return all(model.token_to_id(piece) is not None for piece in pieces)


def _keeps_text(split: dict[str, Any]) -> bool:
    kind = split["type"]
    return kind in ("ByteLevel", "Digits", "Metaspace") or (
        kind == "Split" and split["behavior"] != "Removed"
    )


def _shrinks_by(normalizer: dict[str, Any]) -> int | None:
    """Give the factor by which a normalizer may shorten a text; None: unbounded."""
    match normalizer:
        case {"type": "NFC"}:
            return NFC_SHRINKS_BY
        case {"type": "Prepend"} | {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
            return 1
    return None


def _bytes(text: str) -> int:
    return len(text.encode())
