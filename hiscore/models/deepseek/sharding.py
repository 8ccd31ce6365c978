"""Share of a decoder with latent attention on each rank: sizes, and cuts of the checkpoint's tensors.

Heads, neurons and the shared experts' neurons are divided, experts by their number, embedding and head by the
vocabulary. Every rank has the low-rank projections, the indexer and the latents whole: a selection is the same on
all of them, and one sum over ranks ends each block.
"""

from dataclasses import dataclass, replace

from hiscore.models.cut import UNCUT, Cut, rows, scaled, shifted
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


@dataclass(frozen=True)
class DsaCuts:
    """A rank's parts of tensors. Without a cut in a field: all of it.

    q_up, kv_up, gate_up and shared_gate_up are cut by outputs, gate and up one behind another; output, down and
    shared_down by inputs. One of the ranks adds the biases of what is summed over ranks.
    """

    experts: slice
    vocabulary: Cut = UNCUT
    q_up: Cut = UNCUT
    kv_up: Cut = UNCUT
    output: Cut = UNCUT
    gate_up: Cut = UNCUT
    down: Cut = UNCUT
    shared_gate_up: Cut = UNCUT
    shared_down: Cut = UNCUT
    adds_biases: bool = True

    @classmethod
    def of(cls, a: DsaArchitecture, shard: Shard) -> "DsaCuts":
        if shard.ranks == 1:
            return cls(experts=slice(0, a.experts.count))
        heads, neurons = shard.span(a.heads), shard.span(a.intermediate_size)
        shared = shard.span(a.shared_width)
        return cls(
            experts=shard.span(a.experts.count),
            vocabulary=rows(shard.span(a.vocab_size)),
            q_up=rows(scaled(heads, a.nope_dim + a.rope_dim)),
            kv_up=rows(scaled(heads, a.nope_dim + a.value_dim)),
            output=Cut(columns=scaled(heads, a.value_dim)),
            gate_up=rows(neurons, shifted(neurons, a.intermediate_size)),
            down=Cut(columns=neurons),
            shared_gate_up=rows(shared, shifted(shared, a.shared_width)),
            shared_down=Cut(columns=shared),
            adds_biases=shard.rank == 0,
        )
