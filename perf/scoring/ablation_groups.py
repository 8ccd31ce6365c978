"""The groups of perf.scoring.ablations: the first arm is the full scorer, others lack one optimisation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hiscore.arrays import Int32
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.loadgen.scorer_calls import Shape
from perf.scoring import ablation_variants


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


Calls = list[ScoreRequest]
# Elements are calls, or calls as `ablation_variants.Marked`.
Batch = Sequence[Any]

# Batches in flight at saturation, as many as the server keeps.
DEPTH = 2


@dataclass(frozen=True)
class Arm:
    """One way to score batches."""

    submit: Callable[[Any], Any]
    """Launches a batch; `result()` of what it returns waits for the scores."""
    depth: int = 1
    """Batches in flight."""
    cached: bool = False
    """Repeated queries must be served from the cache."""


@dataclass(frozen=True)
class Group:
    """Arms to compare over the same batches; `idle` asks for the GPU's idle share as well."""

    name: str
    what: str
    batches: Sequence[Batch]
    arms: dict[str, Arm]
    idle: bool = False


@dataclass
class _Draw:
    """Draws random calls without the delimiter's id."""

    sizes: Sizes
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def call(self, shape: Shape, query: Int32 | None = None) -> ScoreRequest:
        tokens = self.rng.integers(0, self.sizes.vocabulary, shape.tokens).astype(np.int32)
        tokens[tokens == self.sizes.delimiter] = 0
        if query is not None:
            tokens[: shape.query] = query
        prompt = MultiItemPrompt(tokens, shape.query, np.full(shape.items, shape.item))
        labels = np.array(self.sizes.labels, np.int32)
        return ScoreRequest(prompt, labels, ScoreOptions(apply_softmax=True))

    def small(self, shape: Shape) -> list[Calls]:
        """Draw batches of one call."""
        return [[self.call(shape)] for _ in range(self.sizes.small_batches)]

    def full(self, calls: int | None = None) -> list[Calls]:
        """Draw batches as large as one forward takes."""
        sizes = self.sizes
        return [
            [self.call(sizes.request) for _ in range(calls or sizes.full_batch)]
            for _ in range(sizes.full_batches)
        ]

    def repeated(self, shape: Shape, calls: int, batches: int) -> list[Calls]:
        """Draw batches whose calls all have one query."""
        query = self.call(Shape(shape.query, 1, 0)).prompt.tokens
        return [[self.call(shape, query) for _ in range(calls)] for _ in range(batches)]


@dataclass(frozen=True)
class Finished:
    """Answers that are already there, with the interface of pending ones."""

    answers: list[Any]

    def result(self) -> tuple[list[Any], None]:
        """Like `PendingScores.result`, without the statistics of the batch."""
        return self.answers, None


def one_item_at_a_time(scorer: Scorer, calls: Calls) -> Finished:
    """Score every item with its query alone, one after the other."""
    singles = [single for call in calls for single in ablation_variants.as_single_items(call)]
    return Finished([scorer.submit([single]).result()[0][0] for single in singles])


def as_prompts(scorer: Scorer, calls: Calls) -> Any:
    """Score every item with its query as a separate prompt, all in one batch."""
    return scorer.submit([single for call in calls for single in ablation_variants.as_single_items(call)])


def groups(scorer: Scorer, caching: Scorer, sizes: Sizes) -> list[Group]:
    """All groups.

    Args:
        caching: The same checkpoint with a prefix cache.
    """
    draw = _Draw(sizes)
    alone, full = draw.small(sizes.request), draw.full()
    prompt = draw.small(Shape(sizes.request.query + sizes.request.item, 1, 0))
    whole = ablation_variants.with_whole_vocabulary(scorer)
    behind, sampled = (ablation_variants.with_decode_step(scorer, sampled) for sampled in (False, True))

    def searching(calls: Sequence[ablation_variants.Marked]) -> Any:
        return ablation_variants.submit_searching(scorer, calls, sizes.delimiter)

    def indexed(calls: Sequence[ablation_variants.Marked]) -> Any:
        return ablation_variants.submit_indexed(scorer, calls)

    def marked(batches: Sequence[Calls]) -> list[list[ablation_variants.Marked]]:
        return [[ablation_variants.mark(call, sizes.delimiter) for call in batch] for batch in batches]

    def both(
        make: Callable[[int], dict[str, Arm]],
        name: str,
        what: str,
        prepare: Callable[[Sequence[Calls]], Sequence[Batch]] = list,
    ) -> list[Group]:
        calls = f"{len(full[0])} calls a batch"
        return [
            Group(f"{name}, alone", f"{what}; one call at a time", prepare(alone), make(1)),
            Group(f"{name}, saturated", f"{what}; {calls}", prepare(full), make(DEPTH), idle=True),
        ]

    all_groups = [
        Group(
            "overlap, saturated",
            f"the next batch is launched while the GPU computes, or not; {len(full[0])} calls a batch",
            full,
            {"overlap": Arm(scorer.submit, DEPTH), "each batch waited for": Arm(scorer.submit)},
            idle=True,
        ),
        Group(
            "overlap, small batches",
            "the same with one call a batch",
            alone,
            {"overlap": Arm(scorer.submit, DEPTH), "each batch waited for": Arm(scorer.submit)},
            idle=True,
        ),
        *both(
            lambda depth: {
                "label columns": Arm(scorer.submit, depth),
                "whole vocabulary": Arm(whole.submit, depth),
            },
            "head",
            "logits of the labels alone, or of the whole vocabulary at every item",
        ),
        *_cache_groups(scorer, caching, sizes, draw),
        Group(
            "multi-item, alone",
            "all items packed behind one query; each with its own copy of the query",
            alone,
            {
                "packed": Arm(scorer.submit),
                "as prompts of one batch": Arm(lambda calls: as_prompts(scorer, calls)),
                "one item at a time": Arm(lambda calls: one_item_at_a_time(scorer, calls)),
            },
        ),
        Group(
            "multi-item, saturated",
            "the same under load, as many calls a batch as a forward takes as prompts",
            draw.full(sizes.full_batch_of_prompts),
            {
                "packed": Arm(scorer.submit, DEPTH),
                "as prompts of one batch": Arm(lambda calls: as_prompts(scorer, calls), DEPTH),
            },
        ),
        *both(
            lambda depth: {
                "computed ahead": Arm(indexed, depth),
                "searched on the device": Arm(searching, depth),
            },
            "delimiters",
            "where they stand is known, or searched for once on the device",
            marked,
        ),
        *both(
            lambda depth: {
                "prefill only": Arm(scorer.submit, depth),
                "and a step launched behind": Arm(behind.submit, depth),
                "and a step of the sampled token": Arm(sampled.submit, depth),
            },
            "decode step",
            "no decode, or one step over one token for each item",
        ),
    ]
    if scorer.device.type == "cuda":
        eager = ablation_variants.without_graphs(scorer)

        def graphs(depth: int) -> dict[str, Arm]:
            return {"graphs": Arm(scorer.submit, depth), "eager": Arm(eager.submit, depth)}

        all_groups += both(graphs, "CUDA graphs", "the layers replayed as a graph, or launched one by one")
        all_groups.append(Group("CUDA graphs, one prompt", "the same for one prompt", prompt, graphs(1)))
    return all_groups


def _cache_groups(scorer: Scorer, caching: Scorer, sizes: Sizes, draw: _Draw) -> list[Group]:
    """Groups whose calls share a query, so that all but the first find it in the cache."""

    def arms(depth: int) -> dict[str, Arm]:
        return {"cached": Arm(caching.submit, depth, cached=True), "no cache": Arm(scorer.submit, depth)}

    def group(name: str, shape: Shape, calls: int, batches: int, depth: int) -> Group:
        what = f"the query's keys and values cached, or not: {shape}, {calls} calls a batch"
        return Group(f"query cache, {name}", what, draw.repeated(shape, calls, batches), arms(depth))

    return [
        group("alone", sizes.request, 1, sizes.small_batches, 1),
        group("saturated", sizes.request, sizes.full_batch, sizes.full_batches, DEPTH),
        group("long query", sizes.long_query, 1, sizes.small_batches, 1),
    ]


def skipped(device: str) -> list[str]:
    """A line for each comparison that this device cannot make."""
    return [] if device == "cuda" else ["CUDA graphs and idle shares: there is no CUDA device"]
