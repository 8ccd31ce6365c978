"""The bytes that a single token stands for: parts of characters too, which decoding alone does not show."""

import re

from tokenizers import Tokenizer

from hiscore.tokenization.split_rule import state

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"


class TokenBytes:
    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        decoder = state(backend.decoder)
        kinds = {each["type"] for each in decoder.get("decoders", [decoder] if decoder else [])}
        self._letters = byte_letters() if "ByteLevel" in kinds else {}
        self._prefix = decoder.get("prefix", "##") if "WordPiece" in kinds else ""

    def __call__(self, token: int) -> bytes:
        """The bytes of a token; none for an id without one."""
        if (content := self._added.get(token)) is not None and not BYTE_TOKEN.fullmatch(content):
            return content.encode()
        piece = self._backend.id_to_token(token) or ""
        if self._letters:
            return bytes(self._letters[letter] for letter in piece if letter in self._letters)
        if match := BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        if self._prefix:
            return (
                piece.removeprefix(self._prefix) if piece.startswith(self._prefix) else f" {piece}"
            ).encode()
        return piece.replace(SPACE_MARK, " ").encode()


def byte_letters() -> dict[str, int]:
    """The letters of byte-level BPE: printable bytes are themselves, the others follow from U+0100 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
