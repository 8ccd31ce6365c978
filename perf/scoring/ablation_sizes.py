"""Sizes of the ablations on a GPU, and in rehearsals on a CPU."""

from dataclasses import dataclass, replace

from perf.loadgen.scorer_calls import Shape


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run; batches are those of one window."""

    request: Shape
    long_query: Shape
    labels: tuple[int, int]
    vocabulary: int
    delimiter: int
    """The id that marks items' bounds where these are searched for."""
    full_batch: int
    """Calls in a batch at saturation."""
    full_batch_of_prompts: int
    """Calls in a batch where every item becomes its own prompt."""
    full_batches: int
    small_batches: int
    budget: int
    cache_bytes: int
    rounds: int

    def with_rounds(self, rounds: int) -> "Sizes":
        return replace(self, rounds=rounds)


GPU = Sizes(
    request=Shape(120, 10, 180),
    long_query=Shape(2_000, 10, 20),
    labels=(9454, 2753),
    vocabulary=151_936,
    delimiter=9_999,
    full_batch=8,
    full_batch_of_prompts=5,
    full_batches=12,
    small_batches=20,
    budget=16_384,
    cache_bytes=2**30,
    rounds=7,
)
# A rehearsal with a tiny model, to see that everything works: its numbers mean nothing.
CPU = Sizes(
    request=Shape(40, 5, 12),
    long_query=Shape(200, 5, 4),
    labels=(9, 7),
    vocabulary=500,
    delimiter=499,
    full_batch=3,
    full_batch_of_prompts=2,
    full_batches=2,
    small_batches=2,
    budget=1_024,
    cache_bytes=2**20,
    rounds=3,
)
