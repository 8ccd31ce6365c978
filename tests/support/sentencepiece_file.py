"""A published sentencepiece vocabulary (`tokenizer.model`) as the BPE that tokenizer.json holds."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers.models import BPE

PIECES, TEXT, SCORE = 1, 1, 2
"""Fields of ModelProto and of its SentencePiece."""
VARINT, EIGHT_BYTES, FOUR_BYTES = 0, 1, 5
"""How protobuf writes a field; any other here: a length, then so many bytes."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number of protobuf, and where it ends."""
    value, shift = 0, 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message that are no varints: their numbers and bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == VARINT:
            _, at = varint(data, at)
            continue
        size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(tag & 7)
        if size is None:
            size, at = varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def bpe(path: Path, more: Sequence[str] = ()) -> BPE:
    """The pieces, and every pair of them that makes another, the best first; `more`: further pieces."""
    found = [dict(fields(piece)) for number, piece in fields(path.read_bytes()) if number == PIECES]
    scores = {each[TEXT].decode(): struct.unpack("<f", each[SCORE])[0] for each in found}
    scores |= dict.fromkeys(more, min(scores.values()) - 1)
    vocab = {piece: index for index, piece in enumerate(scores)}
    merges = [
        (-score, vocab[piece[:at]], vocab[piece[at:]], (piece[:at], piece[at:]))
        for piece, score in scores.items()
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    pairs = [pair for *_, pair in sorted(merges)]
    return BPE(vocab, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
