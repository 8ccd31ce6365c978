"""Share of a decoder on each rank: its sizes, and the cuts of the checkpoint's tensors.

Attention and MLP are divided by their outputs on the way in and by their inputs on the way out, so that a rank's
heads and neurons are its own, and one sum over ranks ends each block. Embedding and head are divided by the
vocabulary, experts by their number. What every rank needs whole, such as norms and routers, every rank reads.
"""

from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Cuts:
    """A rank's parts of a checkpoint's tensors. Without a cut in a field: all of it.

    qkv and gate_up are cut by outputs, one behind another; output and down by inputs; q_norm and k_norm by the
    numbers of a norm over all heads, or by heads. One of the ranks `adds_biases` of what is summed over ranks.
    """

    experts: slice
    vocabulary: Cut = UNCUT
    qkv: Cut = UNCUT
    output: Cut = UNCUT
    q_norm: Cut = UNCUT
    k_norm: Cut = UNCUT
    sinks: Cut = UNCUT
    gate_up: Cut = UNCUT
    down: Cut = UNCUT
    adds_biases: bool = True

    @classmethod
    def of(cls, a: Architecture, shard: Shard) -> "Cuts":
        every_expert = slice(0, a.experts.count if a.experts else 0)
        if shard.ranks == 1:
            return cls(experts=every_expert)
        of_q, of_kv = shard.span(a.heads), shard.kv_span(a.kv_heads)
        q, kv = scaled(of_q, a.head_dim), scaled(of_kv, a.head_dim)
        all_q, all_kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        neurons = shard.span(a.intermediate_size)
        norms = UNCUT, UNCUT
        if a.family.qk_norm_of_all_heads:
            norms = rows(q), rows(kv)
        elif a.family.qk_norm_by_head:
            norms = rows(of_q), rows(of_kv)
        return cls(
            vocabulary=rows(shard.span(a.vocab_size)),
            qkv=rows(q, shifted(kv, all_q), shifted(kv, all_q + all_kv)),
            output=Cut(columns=q),
            q_norm=norms[0],
            k_norm=norms[1],
            sinks=rows(of_q),
            gate_up=rows(neurons, shifted(neurons, a.intermediate_size)),
            down=Cut(columns=neurons),
            experts=shard.span(every_expert.stop),
            adds_biases=shard.rank == 0,
        )
