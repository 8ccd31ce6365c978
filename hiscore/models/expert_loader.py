"""Loads a layer's mixture of experts into one tensor for all experts, however the file holds them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hiscore.layers.weights import Experts, Mlp
from hiscore.models.config import Architecture, ExpertShape
from hiscore.models.cut import UNCUT, Cut, rows
from hiscore.models.family import ExpertNames
from hiscore.models.reader import CheckpointReader
from hiscore.parallel.shard import Shard


def load_experts(read: CheckpointReader, layer: str, a: Architecture, shard: Shard) -> Experts:
    """Load the router of a layer, and those of its experts that a rank holds."""
    names, shape = a.family.experts, a.experts
    assert names is not None
    assert shape is not None
    # transformers 5 calls every block mlp, also in files of families that had another name for it.
    published, count, hidden = f"{layer}.{names.block}", shape.count, a.hidden_size
    held = shard.span(count)
    block = published if f"{published}.{names.router}.weight" in read else f"{layer}.mlp"
    gate_up, down = read_experts(read, f"{block}.experts", shape, hidden, names, held)

    def bias(name: str, *sizes: int, cut: Cut = UNCUT, dtype: torch.dtype | None = None) -> Tensor | None:
        return read.tensor(f"{block}.{name}", *sizes, dtype=dtype, cut=cut) if names.interleaved else None

    router = read.tensor(f"{block}.{names.router}.weight", count, hidden, dtype=torch.float32)
    shared = None
    if shape.shared_width is not None:
        beside, width = f"{block}.shared_expert", shape.shared_width
        gate = read.tensor(f"{beside}_gate.weight", 1, hidden, dtype=torch.float32)
        router = torch.cat((router, gate))
        parts = {f"{beside}.{part}": width for part in names.parts[:2]}
        shared = Mlp(
            gate_up=read.projection(parts, hidden, bias=False),
            down=read.projection({f"{beside}.{names.parts[2]}": hidden}, width, bias=False),
        )
    gate_up_bias = bias("experts.gate_up_proj_bias", count, 2 * shape.width, cut=rows(held))
    return Experts(
        routing=shape.routing,
        activation=shape.activation,
        router=router,
        router_bias=bias(f"{names.router}.bias", count, dtype=torch.float32),
        gate_up=gate_up,
        gate_up_bias=None if gate_up_bias is None else _side_by_side(gate_up_bias),
        down=down,
        down_bias=bias("experts.down_proj_bias", count, hidden, cut=rows(held)),
        shared=shared,
        gates_shared=names.shared,
        first=held.start,
    )


def read_experts(
    read: CheckpointReader,
    prefix: str,
    shape: ExpertShape,
    hidden: int,
    names: ExpertNames,
    held: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """Read the weights of held experts (None: all): [E, 2 F, hidden], gate first, and [E, hidden, F]."""
    count, width = shape.count, shape.width
    cut = UNCUT if held is None else rows(held)
    wide, narrow = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"
    if wide in read and names.interleaved:
        in_turn = read.tensor(wide, count, hidden, 2 * width, cut=cut)
        down = read.tensor(narrow, count, width, hidden, cut=cut)
        return _side_by_side(in_turn).transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()
    if wide in read:
        gate_up = read.tensor(wide, count, 2 * width, hidden, cut=cut)
        return gate_up, read.tensor(narrow, count, hidden, width, cut=cut)
    of_each = [[f"{prefix}.{index}.{part}.weight" for part in names.parts] for index in range(count)]
    if held is not None:
        mine = of_each[held]
        read.leave(name for of_one in of_each if of_one not in mine for name in of_one)
        of_each = mine
    first = [name for gate, up, _ in of_each for name in (gate, up)]
    gate_up = _stack(read, first, width, hidden).unflatten(0, (len(of_each), 2)).flatten(1, 2)
    return gate_up, _stack(read, [down for _, _, down in of_each], hidden, width)


def _stack(read: CheckpointReader, names: Sequence[str], *shape: int) -> Tensor:
    """Read tensors of one shape as one: [names, *shape]. Only one of them exists twice at a time."""
    first = read.tensor(names[0], *shape)
    stacked = first.new_empty((len(names), *shape))
    stacked[0] = first
    for into, name in zip(stacked[1:], names[1:], strict=True):
        into.copy_(read.tensor(name, *shape))
    return stacked


def _side_by_side(in_turn: Tensor) -> Tensor:
    """Gate and up in turn along the last dimension, as all of gate, then all of up."""
    return torch.cat((in_turn[..., 0::2], in_turn[..., 1::2]), dim=-1)
