"""The share of a model that a rank has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of several equal shares, by default the whole."""

    rank: int = 0
    ranks: int = 1

    def span(self, size: int) -> slice:
        """The rank's consecutive share of `size` things; shares differ by one at most."""
        return slice(size * self.rank // self.ranks, size * (self.rank + 1) // self.ranks)

    def count(self, size: int) -> int:
        """Count the things in `span(size)`."""
        span = self.span(size)
        return int(span.stop) - int(span.start)

    def count_dealt(self, size: int) -> int:
        """Count the rank's share of `size` things that are dealt out in turn: thing i to rank i % ranks."""
        return len(range(self.rank, size, self.ranks))

    def kv_span(self, kv_heads: int) -> slice:
        """The rank's heads of keys and values: a share of them, or the one that its heads of queries share."""
        if kv_heads >= self.ranks:
            return self.span(kv_heads)
        mine = self.rank * kv_heads // self.ranks
        return slice(mine, mine + 1)

    def copies(self, kv_heads: int) -> int:
        """Count the ranks that hold each head of keys and values."""
        return max(self.ranks // kv_heads, 1)


WHOLE = Shard()
