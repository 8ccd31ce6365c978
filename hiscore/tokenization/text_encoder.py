"""Texts to the ids of a checkpoint's tokenizer, without special tokens around them, many at a time."""

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from tokenizers import AddedToken, Tokenizer

from hiscore.server.host import usable_cores
from hiscore.tokenization.byte_level_bpe import byte_level_bpe
from hiscore.tokenization.panics import Panic, panics_raised
from hiscore.tokenization.split_rule import state

# A core encodes that many in some milliseconds: fewer are not worth waking another for.
CHARACTERS_PER_THREAD = 2**15
# Short texts that are joined to be searched: to search each alone takes longer.
TEXTS_AT_ONCE = 16
# Expressions within expressions are read recursively.
MOST_LEVELS = 50


class TextEncoder:
    """Gives the ids of the tokenizers library, by tiktoken where it gives the same (`byte_level_bpe`).

    The tokenizers library looks for added tokens first, for the longest at each place, and encodes the pieces
    between them one by one; tokens that are looked for in normalised text come second. So a text is split at the
    first kind here. A text with a token of the second kind, or one that depends on its surroundings, is left to
    the library, as is a text with a character for which BPE has no token.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend, self._normalizer = backend, backend.normalizer
        normalizer = state(self._normalizer).get("type")
        simple = normalizer in (None, "NFC") and _adds_only_specials(state(backend.post_processor))
        self._bpe = byte_level_bpe(backend) if simple else None
        added = backend.get_added_tokens_decoder()
        # With this option special tokens are found, and then encoded as text all the same.
        splits = not backend.encode_special_tokens
        plain = {number: token for number, token in added.items() if splits and _is_plain(token)}
        self._ids = {token.content: number for number, token in plain.items()}
        self._plain = re.compile(f"({any_of(self._ids).pattern})")
        others = {token.content for number, token in added.items() if number not in plain}
        if simple and self._normalizer is not None:
            others |= set(map(self._normalizer.normalize_str, others))
        self._others = any_of(others)
        left_out = self._bpe.left_out if self._bpe else ()
        # The last are surrogates, which are no text.
        classes = "".join(f"{re.escape(a)}-{re.escape(b)}" for a, b in (*left_out, ("\ud800", "\udfff")))
        self._left_out = re.compile(f"[{classes}]")
        # To look for a few characters takes a hundredth of the time of the expressions.
        self._first_characters = {content[0] for content in (*self._ids, *others)}
        self._first_characters |= {first for first, _ in left_out if first.isascii()}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts; many characters on several cores.

        Raises:
            Panic: A library gave up on one of the texts.
        """
        if self._bpe is None:
            return self._by_backend(texts)
        split = {index: self._pieces(texts[index]) for index in self._to_split(texts)}
        whole = [text for index, text in enumerate(texts) if index not in split] if split else texts
        pieces = [piece for own in split.values() if own for piece in own if isinstance(piece, str)]
        encoded = self._by_bpe([*whole, *pieces])
        if encoded is None:
            return self._by_backend(texts)
        if not split:
            return encoded
        others = iter(self._by_backend([texts[index] for index, own in split.items() if own is None]))
        rows, piece_rows = iter(encoded[: len(whole)]), iter(encoded[len(whole) :])
        found = {
            index: next(others) if own is None else _joined(own, piece_rows) for index, own in split.items()
        }
        return [found[index] if index in found else next(rows) for index in range(len(texts))]

    def _to_split(self, texts: Sequence[str]) -> list[int]:
        """Find the texts that may hold added tokens, without a look at each of many."""
        if not self._may_hold_more("".join(texts)):
            return []
        if len(texts) <= TEXTS_AT_ONCE:
            return [index for index, text in enumerate(texts) if self._may_hold_more(text)]
        groups = range(0, len(texts), TEXTS_AT_ONCE)
        return [
            begin + index
            for begin in groups
            for index in self._to_split(texts[begin : begin + TEXTS_AT_ONCE])
        ]

    def _may_hold_more(self, text: str) -> bool:
        return not text.isascii() or any(map(text.__contains__, self._first_characters))

    def _pieces(self, text: str) -> list[str | int] | None:
        """Ids of added tokens, and the texts between them as BPE is to have them; None: left to the library."""
        if self._others.search(text):
            return None
        found: list[str | int] = []
        for index, piece in enumerate(self._plain.split(text)):
            if index % 2:
                found.append(self._ids[piece])
            elif piece:
                normalized = self._normalized(piece)
                if normalized is None:
                    return None
                found.append(normalized)
        return found

    def _normalized(self, piece: str) -> str | None:
        """A piece without added tokens in its normal form; None if it is left to the library."""
        if self._left_out.search(piece):
            return None
        if self._normalizer is None or piece.isascii():
            return piece
        normalized: str = self._normalizer.normalize_str(piece)
        return None if self._left_out.search(normalized) or self._others.search(normalized) else normalized

    def _by_bpe(self, texts: list[str]) -> list[list[int]] | None:
        """Encode texts; None if a pattern backtracks too far, which the tokenizers library may survive."""
        try:
            if sum(map(len, texts)) <= CHARACTERS_PER_THREAD:
                return self._encode_part(texts)
            parts = by_characters(texts, CHARACTERS_PER_THREAD)
            return [row for rows in self._threads.map(self._encode_part, parts) for row in rows]
        except Panic:
            return None

    def _encode_part(self, texts: list[str]) -> list[list[int]]:
        assert self._bpe is not None
        return self._bpe.encode(texts)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(usable_cores(), "hiscore-encode")

    def _by_backend(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        with panics_raised():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def _is_plain(token: AddedToken) -> bool:
    """Check that an added token is found wherever its content stands in a text."""
    return not (token.normalized or token.lstrip or token.rstrip or token.single_word)


def _joined(pieces: list[str | int], rows: Iterator[list[int]]) -> list[int]:
    """Join the ids of a text's pieces; `rows` holds those of each piece that is text."""
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return next(rows)
    return [each for piece in pieces for each in ([piece] if isinstance(piece, int) else next(rows))]


def _adds_only_specials(post_processor: dict[str, Any]) -> bool:
    """Check that a post-processor leaves a text's ids as they are if no special tokens are asked for."""
    match post_processor:
        case {"type": "Sequence", "processors": steps}:
            return all(map(_adds_only_specials, steps))
        case {"type": "TemplateProcessing", "single": pieces}:
            return sum("Sequence" in piece for piece in pieces) == 1
    return not post_processor or post_processor["type"] in (
        "ByteLevel",
        "BertProcessing",
        "RobertaProcessing",
    )


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Make an expression for the longest of the words that stand at a place; without words it matches nothing.

    Words are told apart letter by letter: of a thousand that begin alike, all would be tried at each place.
    """
    return re.compile(_alternatives(sorted(set(words)), MOST_LEVELS) or "(?!)")


def _alternatives(words: list[str], levels: int) -> str:
    """Join sorted words, none of them empty, to one expression."""
    if not levels:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches = []
    for _, alike in groupby(words, key=itemgetter(0)):
        group = list(alike)
        first, last = group[0], group[-1]
        # In order, so what these two share all do.
        shared = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        rests = [word[shared:] for word in group if len(word) > shared]
        branch = re.escape(first[:shared])
        if rests:
            branch += f"(?:{_alternatives(rests, levels - 1)})" + ("?" if len(first) == shared else "")
        branches.append(branch)
    return "|".join(branches)


def by_characters(texts: Sequence[str], characters: int) -> Iterator[list[str]]:
    """Texts in order, in batches that end as soon as they have so many characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
