"""Loads of `perf.decoding.streaming`, on a GPU and in a rehearsal."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt and tokens to generate."""

    prompt: int
    tokens: int

    def times(self, factor: float) -> "Lengths":
        return Lengths(max(1, round(factor * self.prompt)), max(2, round(factor * self.tokens)))


@dataclass(frozen=True)
class Plan:
    """The requests of a run."""

    vocabulary: int
    factor: float
    """Scales the lengths of `benchmark`."""
    shorter: Lengths
    """Lengths in the sweep and in the Poisson arrivals."""
    concurrencies: tuple[int, ...]
    poisson_shares: tuple[float, ...]
    """Arrival rates, as shares of the highest rate of the sweep."""
    poisson_s: float
    kv_bytes: int
    """Size of each pool."""
    benchmark: Lengths = Lengths(8_192, 1_500)
    count: int = 30
    at_once: int = 5


GPU = Plan(
    vocabulary=151_936,
    factor=1.0,
    shorter=Lengths(1_024, 128),
    concurrencies=(1, 4, 16, 32),
    poisson_shares=(0.5, 0.8),
    poisson_s=15,
    # Keys and values of 30,000 tokens take 3.2 GiB; pinning more would only take time.
    kv_bytes=8 * GIB,
)

CPU = Plan(
    vocabulary=500,
    factor=1 / 64,
    shorter=Lengths(48, 12),
    concurrencies=(1, 4),
    poisson_shares=(0.5,),
    poisson_s=5,
    kv_bytes=GIB // 16,
)
