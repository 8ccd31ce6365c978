r"""Byte-level BPE by tiktoken, which gives the ids of a checkpoint's own tokenizer in a third of the time.

tiktoken splits a text by one pattern and merges within each piece whatever two neighbours form a token, the token
of the lowest rank first. The tokenizers library merges the pairs that are listed, the first of the list first.

Claim: if `byte_level_bpe` returns something, both give the same ids for every text that no other step changes, if
it has none of the characters that are left out (`text_encoder` sees to both).

The pieces are the same. The pattern is one of `safe_splits`, whose alternatives leave out nothing of a text, and
the classes that it names are the same characters in both libraries (tested). Splitting at digits first is written
into the pattern: a run of whitespace before a digit ends there as if the text did. That step has a table of its
own, so what is a digit to it alone is left out.

The merges of a piece are the same. Ids rise along the list, so both take tokens in the same order, the leftmost
first. Take two neighbours that form token t. No merge so far went across either end of them, so what happened
between the ends is what happens to the bytes of t alone. By the list these become t (checked for each token;
others are left out), so the two are a listed pair. A piece that is a token is looked up: it is what its bytes
become.

Texts that are encoded together have a special token between them. tiktoken looks for special tokens first, and
splits what stands between two of them as if it were a text of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tiktoken
from tokenizers import Tokenizer
from tokenizers.models import BPE

from hiscore.tokenization.panics import Panic, panics_raised
from hiscore.tokenization.safe_splits import GPT2, SAFE_PATTERNS
from hiscore.tokenization.split_rule import state
from hiscore.tokenization.token_bytes import byte_letters

GPT2_BETWEEN_DIGITS = (
    r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"  # SmolLM2
)
SEPARATOR = "\0"
"""Between texts that are encoded together. Of one character, so that no end of a text becomes part of it."""
PIECES_AT_ONCE = 2**14
CONTINUATION = range(0x80, 0xC0)
NEVER_IN_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))
# Of Unicode 17, which the step that splits at digits knows, and no pattern.
NEW_DIGITS = (("\U00011de0", "\U00011de9"), ("\U00016ff4", "\U00016ff6"))


@dataclass(frozen=True)
class ByteLevelBPE:
    """A tiktoken encoding that gives a tokenizer's ids, and the characters that it cannot take.

    `left_out` holds ranges from first to last: characters of which the vocabulary lacks a byte, or which the two
    libraries see in different ways; and `SEPARATOR`.
    """

    encoding: tiktoken.Encoding
    left_out: tuple[tuple[str, str], ...]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts without left-out characters in one call: each lets go of the interpreter, and waits for it.

        Raises:
            Panic: The pattern backtracks too far in one of the texts.
        """
        if not texts:
            return []
        try:
            with panics_raised():
                ids = self.encoding.encode(
                    SEPARATOR.join(texts), allowed_special={SEPARATOR}, disallowed_special=()
                )
        except ValueError as error:
            raise Panic(str(error)) from None
        separator, rows, begin = self.encoding.max_token_value, [], 0
        for _ in range(len(texts) - 1):
            end = ids.index(separator, begin)
            rows.append(ids[begin:end])
            begin = end + 1
        return [*rows, ids[begin:]]


def byte_level_bpe(backend: Tokenizer) -> ByteLevelBPE | None:
    """Find the encoding that gives a fast tokenizer's ids, or None if that is not proved.

    The tokenizer's normalizer, added and special tokens are left to the caller.
    """
    pattern = _pattern(state(backend.pre_tokenizer))
    if pattern is None or not isinstance(backend.model, BPE) or backend.model.dropout:
        return None
    model = state(backend.model)
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    # Of two tokens with one id, its state has only one.
    if model["vocab"] != backend.get_vocab(with_added_tokens=False):
        return None
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    ids, unknown = _mergeable(model, added), _unknown(model["vocab"])
    if ids is None or unknown is None:
        return None
    as_latin_1 = str.maketrans({letter: chr(byte) for letter, byte in byte_letters().items()})
    ranks = {piece.translate(as_latin_1).encode("latin-1"): number for piece, number in ids.items()}
    encoding = tiktoken.Encoding(
        "checkpoint",
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens={SEPARATOR: max(ranks.values()) + 1},
    )
    differing = NEW_DIGITS if pattern == GPT2_BETWEEN_DIGITS else ()
    return ByteLevelBPE(encoding, (*unknown, *differing, (SEPARATOR, SEPARATOR)))


def _pattern(pre_tokenizer: dict[str, Any]) -> str | None:
    """The pattern whose matches are the pieces."""
    match pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return GPT2
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return GPT2_BETWEEN_DIGITS
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if pattern in SAFE_PATTERNS:
            return pattern
    return None


def _mergeable(model: dict[str, Any], added: set[str]) -> dict[str, int] | None:
    """The ids of bytes, and of the tokens that their own bytes become; None if the claim does not hold."""
    vocabulary: dict[str, int] = model["vocab"]
    letters = byte_letters().keys()
    merges = [(left, right) for left, right in model["merges"]]
    order = [vocabulary[left + right] for left, right in merges]
    pieces = list(dict.fromkeys(left + right for left, right in merges))
    if order != sorted(order) or not letters >= set("".join(pieces)):
        return None
    kept = letters & vocabulary.keys()
    alone = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    # The library's own results are a hundred times as large as the ids.
    for begin in range(0, len(pieces), PIECES_AT_ONCE):
        some = pieces[begin : begin + PIECES_AT_ONCE]
        encodings = alone.encode_batch_fast(some)
        kept.update(piece for piece, found in zip(some, encodings, strict=True) if len(found.ids) == 1)
    # A piece that is such a token would be looked up, though its bytes become others. Added tokens in ASCII are
    # spelled as they are, so a text with such a piece holds them; `Ġ` is not what a text with a space holds.
    if model["ignore_merges"] and vocabulary.keys() - kept - {each for each in added if each.isascii()}:
        return None
    return {piece: vocabulary[piece] for piece in kept}


def _unknown(vocabulary: dict[str, int]) -> tuple[tuple[str, str], ...] | None:
    """Characters that have a byte without a token; None if it is one that characters end with."""
    lacking = {byte for letter, byte in byte_letters().items() if letter not in vocabulary}
    if not lacking.isdisjoint(CONTINUATION):
        return None
    return tuple(characters_with(byte) for byte in sorted(lacking.difference(NEVER_IN_UTF8)))


def characters_with(byte: int) -> tuple[str, str]:
    """The first and the last character that begins with a byte in UTF-8."""
    following = 0 if byte < 0x80 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
    least = (0, 0x80, 0x800, 0x10000)[following]
    bits = byte & (0x3F >> following) if following else byte
    first, count = bits << 6 * following, 1 << 6 * following
    return chr(max(first, least)), chr(min(first + count - 1, 0x10FFFF))
