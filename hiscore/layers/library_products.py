"""Products by the fastest of cuBLASLt's kernels for their number of rows, measured when a model is loaded.

The kernel that cuBLASLt chooses itself takes up to 1.6 times as long where its tiles leave many multiprocessors
idle. Few others need to be tried: how long a tile takes, and how many follow each other on a multiprocessor, is
known beforehand. Where sums are never split (`device.fix_product_sums`), all of them have the same bits.
"""

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from hiscore.graph_timer import Runs, in_turns
from hiscore.kernels import cublaslt, gated_mlp
from hiscore.kernels.cublaslt import CLUSTERS, OPTIONS, TILES, TYPES, Kernel, Product, Refused
from hiscore.layers.weights import LayerWeights, Linear, Mlp, Projection

log = logging.getLogger(__name__)

MOST_ROWS = 4_608
"""Larger products are nearer to what the GPU's power allows, and most kernels for them want a workspace."""
TILES_TRIED, TILES_ASKED_FOR = 4, 40
"""Of 40 tiles hardly one beat the best of 4 (perf/results/h200/kernel_search.txt). Large products have few."""
KERNELS_COMPARED = 3
"""The fastest of those tried: so many are timed in turns with the library's own choice."""
LEAST_GAIN = 0.02
"""Of a kernel that is taken; less may be noise."""
CACHE_BYTES = 60 << 20
"""More than a Hopper's L2 cache. Weights of so many bytes take turns: in a forward no weight is cached either."""

Key = tuple[int, int, int, bool]
"""Rows, outputs and inputs of a product, and whether it has a bias."""


@dataclass(frozen=True)
class LibraryProducts:
    """The products whose kernel is not the library's own choice.

    Attributes:
        chosen: By `Key`.
    """

    chosen: dict[Key, Product] = field(default_factory=dict)

    @classmethod
    def measure(
        cls, layers: Sequence[LayerWeights], row_counts: Iterable[int], multiprocessors: int
    ) -> "LibraryProducts":
        """Try kernels on a model's own weights.

        Args:
            layers: The model's.
            row_counts: Of the forwards; above `MOST_ROWS` the choice is left to the library.
            multiprocessors: Of the GPU, a Hopper; 0: nothing is tried.
        """
        few = [rows for rows in row_counts if rows <= MOST_ROWS]
        if not (few and multiprocessors):
            return cls()
        if not cublaslt.is_available():
            log.warning(
                "cuBLASLt is not loaded: PyTorch chooses the kernels of products, which may be slower"
            )
            return cls()
        begin, tried = time.monotonic(), 0
        chosen: dict[Key, Product] = {}
        for by_gated_mlp, projections in _products(layers):
            outputs, inputs = projections[0].weight.shape
            # The largest first: smaller ones then fit into memory that those have freed.
            for rows in sorted(few, reverse=True):
                if by_gated_mlp and gated_mlp.tile_for(rows, inputs, outputs // 2, multiprocessors):
                    continue
                tried += 1
                if (taken := fastest(projections, rows, multiprocessors)) is not None:
                    chosen[_key(rows, projections[0])] = taken
        if tried:
            seconds = time.monotonic() - begin
            message = "measured %d products in %.1f s: for %d cuBLASLt has a faster kernel than it chooses"
            log.info(message, tried, seconds, len(chosen))
            torch.cuda.empty_cache()
        return cls(chosen)

    def multiply(self, projection: Projection, x: Tensor) -> Tensor | None:
        """A projection of x; None: the library chooses the kernel."""
        if not isinstance(projection, Linear):
            return None
        chosen = self.chosen.get(_key(len(x), projection))
        if chosen is None or not (_is_readable(x) and _fits(projection)):
            return None
        return chosen(x, projection.weight, projection.bias)


def _key(rows: int, projection: Linear) -> Key:
    outputs, inputs = projection.weight.shape
    return rows, outputs, inputs, projection.bias is not None


def tiles_by_time(rows: int, outputs: int, multiprocessors: int) -> list[tuple[int, int]]:
    """All tiles, those of the shortest expected product first.

    Args:
        rows: Of x.
        outputs: Rows of the weight.
        multiprocessors: Of the GPU, a Hopper.

    Returns:
        Keys of `cublaslt.TILES`.
    """

    def cycles(tile: tuple[int, int]) -> float:
        """For each input, on one multiprocessor: its tiles, each bound by the tensor cores or by the L2 cache."""
        across, down = tile
        tiles = -(-(-(-outputs // across) * -(-rows // down)) // multiprocessors)
        return tiles * max(across * down / 2048, (across + down) / 48)

    return sorted(TILES, key=lambda tile: (cycles(tile), -tile[0] * tile[1]))


def products_to_try(projection: Linear, rows: int, multiprocessors: int) -> list[Product]:
    """Every kernel for projections of this shape whose tile is among the most promising ones.

    Args:
        projection: One of them.
        rows: Of what they multiply.
        multiprocessors: Of the GPU, a Hopper.
    """
    weight, bias = projection.weight, projection.bias
    by_tile: list[list[Product]] = []
    for tile in tiles_by_time(rows, len(weight), multiprocessors)[:TILES_ASKED_FOR]:
        products = []
        for cluster, option in itertools.product(CLUSTERS, OPTIONS):
            with suppress(Refused):
                products.append(Product(rows, weight, bias, Kernel(TILES[tile], cluster, option)))
        if products:
            by_tile.append(products)
        if len(by_tile) == TILES_TRIED:
            break
    return [each for products in by_tile for each in products]


def fastest(projections: Sequence[Linear], rows: int, multiprocessors: int) -> Product | None:
    """The kernel for projections of one shape; None: none is faster than what the library chooses.

    Args:
        projections: All with a bias, or all without.
        rows: Of what they multiply.
        multiprocessors: Of the GPU.
    """
    first = projections[0]
    outputs, inputs = first.weight.shape
    generator = torch.Generator(first.weight.device).manual_seed(0)
    x = first.weight.new_empty(rows, inputs).normal_(generator=generator)
    out, expected = x.new_empty(rows, outputs), first(x)
    tried = products_to_try(first, rows, multiprocessors)
    found = [each for each in tried if _has_bits(each, x, first, out, expected)]
    if len(found) < len(tried):
        message = (
            "%dx%d by %dx%d: cuBLASLt has kernels without the bits of its own choice, which are not used: %d"
        )
        log.warning(message, rows, inputs, inputs, outputs, len(tried) - len(found))
    if not found:
        return None
    cycled = projections[: max(2, CACHE_BYTES // first.weight.nbytes)]
    runs = {each: [partial(each, x, one.weight, one.bias, out) for one in cycled] for each in found}
    times = in_turns(runs, rounds=1)
    best = sorted(found, key=times.__getitem__)[:KERNELS_COMPARED]
    arms: dict[Product | None, Runs] = {None: [partial(_by_library, x, one, out) for one in cycled]}
    times_in_turns = in_turns(arms | {each: runs[each] for each in best})
    taken = min(best, key=times_in_turns.__getitem__)
    return taken if times_in_turns[taken] < (1 - LEAST_GAIN) * times_in_turns[None] else None


def _by_library(x: Tensor, projection: Linear, out: Tensor) -> Tensor:
    weight, bias = projection.weight, projection.bias
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def _has_bits(product: Product, x: Tensor, projection: Linear, out: Tensor, expected: Tensor) -> bool:
    # What another kernel left there would pass for the result of one that writes nothing.
    out.fill_(torch.nan)
    try:
        return torch.equal(product(x, projection.weight, projection.bias, out), expected)
    except Refused:
        return False


def _products(layers: Sequence[LayerWeights]) -> list[tuple[bool, list[Linear]]]:
    """A model's projections in 16 bits by shape and bias, and whether `gated_mlp` may compute them."""
    found: dict[tuple[bool, bool, torch.Size], list[Linear]] = {}
    for layer in layers:
        mlp = layer.mlp if isinstance(layer.mlp, Mlp) else None
        for projection in (layer.qkv, layer.output, *((mlp.gate_up, mlp.down) if mlp else ())):
            if isinstance(projection, Linear) and projection.weight.dtype in TYPES and _fits(projection):
                biased = projection.bias is not None
                by_gated_mlp = not biased and mlp is not None and projection is mlp.gate_up
                key = (by_gated_mlp, biased, projection.weight.shape)
                found.setdefault(key, []).append(projection)
    return [(by_gated_mlp, projections) for (by_gated_mlp, *_), projections in found.items()]


def _fits(projection: Linear) -> bool:
    """Whether a kernel may read a projection's weight and bias."""
    weight, bias = projection.weight, projection.bias
    return _is_readable(weight) and (bias is None or (bias.dtype == weight.dtype and _is_readable(bias)))


def _is_readable(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
