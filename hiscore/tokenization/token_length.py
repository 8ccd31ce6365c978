"""How much text one token can stand for at most: so long a text has too many tokens, however it is encoded."""

from itertools import chain

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from hiscore.tokenization.split_rule import state

# NFC makes of three code points, of three bytes each, at most one of three bytes.
NFC_SHRINKS_BY = 3


def max_bytes_per_token(backend: Tokenizer) -> int | None:
    """Bytes of UTF-8 of the longest token, for tokenizers that lose no text; None for others.

    These are byte-level BPE, and BPE with a token for every byte that is in no other piece: nothing becomes an
    unknown token, which stands for any number of characters. Normalizers may put in marks, and NFC makes a text
    shorter by a bounded factor.
    """
    model, pre_tokenizer = backend.model, state(backend.pre_tokenizer)
    if not isinstance(model, BPE):
        return None
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer] if pre_tokenizer else [])
    kinds = {step["type"] for step in steps}
    if any(step["type"] == "Split" and step["behavior"] == "Removed" for step in steps):
        return None
    byte_level = "ByteLevel" in kinds and all(
        model.token_to_id(each) is not None for each in ByteLevel.alphabet()
    )
    fallback = model.byte_fallback and all(
        model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)
    )
    if not (byte_level or fallback) or kinds - {"ByteLevel", "Split", "Digits", "Metaspace"}:
        return None
    normalizer = state(backend.normalizer)
    shrinks = 1
    for each in normalizer.get("normalizers", [normalizer] if normalizer else []):
        match each:
            case {"type": "NFC"}:
                shrinks *= NFC_SHRINKS_BY
            case {"type": "Prepend"} | {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case _:
                return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    pieces = backend.get_vocab(with_added_tokens=False)
    # In byte-level pieces each letter is a byte.
    longest = max(map(len, pieces), default=1) if byte_level else max(map(_bytes, pieces), default=1)
    return shrinks * max(longest, *chain([1], (_bytes(token.content) for token in added)))


def _bytes(text: str) -> int:
    return len(text.encode())
