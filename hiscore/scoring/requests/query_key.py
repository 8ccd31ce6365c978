"""Keys by which the query cache knows a query: hashes of its pages and of all its tokens."""

from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass

from hiscore.arrays import Int32
from hiscore.page_hashes import PageHashes

# A multiple of the tokens that the attention kernel reads at a time: cached and new keys are then split into the
# same blocks, and a hit changes no bit of a score.
PAGE = 32


@dataclass(frozen=True)
class QueryKey:
    """The hashes of a query: of each full page, over all tokens up to its end, and of all tokens."""

    pages: tuple[bytes, ...]
    whole: bytes

    @classmethod
    def of(cls, tokens: Int32, salt: bytes = b"") -> "QueryKey":
        """Hash a query, int32 [query]; with other salts its keys and values are others."""
        hashes = PageHashes(PAGE, salt)
        hashes.extend(tokens)
        return cls(tuple(hashes.pages), hashes.whole())

    def leading(self, pages: Container[bytes], more: Container[bytes] = ()) -> int:
        """Count the leading pages among some, which hold no page without those before it."""
        return bisect_left(self.pages, True, key=lambda page: page not in pages and page not in more)
