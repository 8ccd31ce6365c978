"""Hashes by which pages of keys and values are found again: over all token ids up to the end of a page."""

import hashlib

from hiscore.arrays import Int32


class PageHashes:
    """Hashes of the full pages of a growing sequence of tokens; other salts give other hashes."""

    def __init__(self, page: int, salt: bytes = b"") -> None:
        self.pages: list[bytes] = []
        """16 bytes for each full page."""
        self.tokens = 0
        self._page = page
        # A key of blake2b has at most 64 bytes, which is what its own digest has.
        self._running = hashlib.blake2b(digest_size=16, key=hashlib.blake2b(salt).digest() if salt else b"")

    def extend(self, tokens: Int32) -> None:
        """Add tokens, int32 [n]."""
        data = memoryview(tokens.tobytes())
        of_page = self._page * tokens.itemsize
        begin, end = 0, of_page - self.tokens * tokens.itemsize % of_page
        while end <= len(data):
            self._running.update(data[begin:end])
            self.pages.append(self._running.digest())
            begin, end = end, end + of_page
        self._running.update(data[begin:])
        self.tokens += len(tokens)

    def whole(self) -> bytes:
        return self._running.digest()
