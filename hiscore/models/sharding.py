"""Share of a decoder on each rank: its sizes, and what it reads of the checkpoint's tensors.

Attention and MLP are divided by their outputs on the way in and by their inputs on the way out, so that a rank's
heads and neurons are its own, and one sum over ranks ends each block. Embedding and head are divided by the
vocabulary, experts by their number. What every rank needs whole, such as norms and routers, every rank reads.
"""

from dataclasses import replace
from itertools import accumulate

from hiscore.models.config import Architecture
from hiscore.models.cut import UNCUT, Cut, rows, scaled, shifted
from hiscore.models.division import undivided
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.parallel.shard import Shard


def of_rank(a: Architecture, shard: Shard) -> Architecture:
    """A checkpoint's architecture with the sizes that a rank computes.

    Heads and neurons are the rank's. Vocabulary and experts keep their numbers: ids and routers are of all.
    """
    if shard.ranks == 1:
        return a
    for has, layers in ((a.recurrence is not None, "recurrent layers"),
                        (a.family.sizes_by_layer, "layers of different sizes")):  # fmt: skip
        if has:
            raise UnsupportedCheckpoint(f"{a.family.name} has {layers}, which one device computes")
    experts = a.experts.count if a.experts else None
    if reason := undivided(shard.ranks, a.heads, a.kv_heads, a.intermediate_size, experts):
        raise UnsupportedCheckpoint(reason)
    kv_heads = max(shard.count(a.kv_heads), 1) if shard.ranks <= a.kv_heads else 1
    return replace(
        a,
        heads=shard.count(a.heads),
        kv_heads=kv_heads,
        head_sizes=((kv_heads, a.head_dim),) * a.layers,
        intermediate_size=shard.count(a.intermediate_size),
    )


def rows_of(shard: Shard, *sizes: int) -> Cut:
    """A rank's part of the outputs of layers of some sizes, one behind another."""
    begins = accumulate(sizes, initial=0)
    parts = [shifted(shard.span(size), begin) for size, begin in zip(sizes, begins, strict=False)]
    return UNCUT if shard.ranks == 1 else rows(*parts)


def columns_of(shard: Shard, size: int) -> Cut:
    """A rank's part of a layer's inputs."""
    return UNCUT if shard.ranks == 1 else Cut(columns=shard.span(size))


def heads_of(shard: Shard, heads: int, kv_heads: int, size: int) -> tuple[Cut, Cut, Cut]:
    """A rank's heads, of `size` rows each, among those of q, those of k, and q, k and v one behind another."""
    q, k = scaled(shard.span(heads), size), scaled(shard.kv_span(kv_heads), size)
    behind = heads * size, (heads + kv_heads) * size
    cuts = rows(q), rows(k), rows(q, *(shifted(k, by) for by in behind))
    return cuts if shard.ranks > 1 else (UNCUT, UNCUT, UNCUT)
