"""Share of a decoder with latent attention on each rank.

Heads, neurons and the shared experts' neurons are divided, experts by their number, embedding and head by the
vocabulary. Every rank has the low-rank projections, the indexer and the latents whole: a selection is the same on
all of them, and one sum over ranks ends each block.
"""

from dataclasses import replace

from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.division import undivided
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.parallel.shard import Shard


def of_rank(a: DsaArchitecture, shard: Shard) -> DsaArchitecture:
    """A checkpoint's architecture with the heads and neurons of a rank, or `UnsupportedCheckpoint`."""
    reason = undivided(shard.ranks, a.heads, a.heads, a.intermediate_size, a.experts.count, a.shared_width)
    if shard.ranks > 1 and reason:
        raise UnsupportedCheckpoint(reason)
    return replace(
        a,
        heads=a.heads // shard.ranks,
        intermediate_size=a.intermediate_size // shard.ranks,
        shared_width=a.shared_width // shard.ranks,
    )
