"""Plans of load tests: shapes, rates and lengths of windows, for a GPU and for rehearsals on a CPU."""

from dataclasses import dataclass, replace

from perf.loadgen.scorer_calls import Shape


@dataclass(frozen=True)
class Plan:
    """The parameters of a load test; seconds are those of one window."""

    request: Shape
    prompts: tuple[Shape, ...]
    """Calls with a single item."""
    labels: tuple[int, int]
    vocabulary: int
    query_cache_bytes: int
    pool: int
    """Distinct calls, sent in turn; more than the prefix cache holds queries."""
    rates: tuple[float, ...]
    analyzer_rates: tuple[float, ...]
    concurrencies: tuple[int, ...]
    open_s: float
    closed_s: float
    alone: int
    """Calls of each window with one call at a time."""
    tolerance: float
    """The largest difference of a score that the contract allows between batches."""


# Qwen3-0.6B's geometry, with its ids of "Yes" and "No". By default its cache has 5,715 pages of 16 tokens,
# including the reserve for split calls: room for 816 queries of 7 full pages.
GPU = Plan(
    request=Shape(120, 10, 180),
    prompts=(Shape(300, 1, 0), Shape(120, 1, 180)),
    labels=(9454, 2753),
    vocabulary=151_936,
    query_cache_bytes=2**30,
    pool=1_200,
    rates=(70, 100, 150, 200, 250, 300, 330),
    analyzer_rates=(70, 200),
    concurrencies=(1, 2, 4, 8, 16, 32, 64, 128),
    open_s=20,
    closed_s=4,
    alone=400,
    tolerance=5e-3,
)
GPU_QUICK = replace(
    GPU, analyzer_rates=(70,), concurrencies=(1, 4, 16, 32, 64, 128), open_s=10, closed_s=2, alone=200
)
# Larger geometries, for their saturation above all: a call takes some 25 to 50 ms.
GPU_LARGE = replace(
    GPU,
    prompts=(Shape(300, 1, 0),),
    pool=600,
    rates=(12,),
    analyzer_rates=(),
    concurrencies=(4, 8, 16),
    open_s=12,
    closed_s=4,
    alone=110,
)
# A rehearsal with a tiny model, to see that everything works: its numbers mean nothing.
CPU = Plan(
    request=Shape(40, 5, 12),
    prompts=(Shape(60, 1, 0), Shape(40, 1, 20)),
    labels=(9, 7),
    vocabulary=500,
    query_cache_bytes=2**20,
    pool=400,
    rates=(20, 40, 80),
    analyzer_rates=(40,),
    concurrencies=(1, 4, 16),
    open_s=8,
    closed_s=3,
    alone=100,
    tolerance=2e-5,
)
