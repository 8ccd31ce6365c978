"""Parts that Gemma 4 alone has, loaded and computed: inputs of each layer, experts beside the MLP, a factor."""

from typing import Any

import torch
from torch import Tensor

from hiscore.layers.moe import moe
from hiscore.layers.ops import Ops
from hiscore.layers.weights import Experts, ExpertsBeside, Gemma4Layer, LayerWeights, OwnInput, OwnInputs
from hiscore.models.config import Architecture
from hiscore.models.expert_loader import read_experts
from hiscore.models.reader import CheckpointReader


def load_own_inputs(read: CheckpointReader, a: Architecture) -> OwnInputs:
    width = a.layers * a.own_input
    return OwnInputs(
        table=read.tensor("model.embed_tokens_per_layer.weight", a.own_vocabulary, width),
        projection=read.projection({"model.per_layer_model_projection": width}, a.hidden_size, bias=False),
        norm=read.tensor("model.per_layer_projection_norm.weight", a.own_input, dtype=torch.float32),
    )


def load_gemma4_layer(read: CheckpointReader, index: int, a: Architecture) -> Gemma4Layer:
    prefix, hidden, own, shape = f"model.layers.{index}", a.hidden_size, a.own_input, a.experts

    def vector(name: str, size: int = hidden) -> Tensor:
        return read.tensor(f"{prefix}.{name}", size, dtype=torch.float32)

    block = beside = None
    if own:
        block = OwnInput(
            gate=read.projection({f"{prefix}.per_layer_input_gate": own}, hidden, bias=False),
            output=read.projection({f"{prefix}.per_layer_projection": hidden}, own, bias=False),
            norm=vector("post_per_layer_input_norm.weight"),
        )
    if shape is not None and a.family.experts is not None:
        gate_up, down = read_experts(read, f"{prefix}.experts", shape, hidden, a.family.experts)
        experts = Experts(
            routing=shape.routing,
            activation=shape.activation,
            router=read.tensor(f"{prefix}.router.proj.weight", shape.count, hidden, dtype=torch.float32),
            gate_up=gate_up,
            down=down,
            factors=vector("router.per_expert_scale", shape.count),
        )
        beside = ExpertsBeside(
            experts,
            router_norm=vector("router.scale") * hidden**-0.5,
            input_norm=vector("pre_feedforward_layernorm_2.weight"),
            output_norm=vector("post_feedforward_layernorm_2.weight"),
            mlp_norm=vector("post_feedforward_layernorm_1.weight"),
        )
    return Gemma4Layer(a.keys_as_values[index], vector("layer_scalar", 1), block, beside)


def own_inputs(tables: OwnInputs, ids: Tensor, x: Tensor, ops: Ops) -> Tensor:
    """Make the inputs of all layers, [T, layers, W], from tokens, int32 [T], and their embeddings, [T, hidden]."""
    width, dtype = len(tables.norm), tables.table.dtype
    projected = ops.project(tables.projection, x.to(dtype)) * x.shape[1] ** -0.5
    normed = x.new_zeros((projected.numel() // width, width))
    ops.add_norm(normed, projected.view(normed.shape), tables.norm, None)
    both = (normed.view(projected.shape) + tables.table[ids] * width**0.5) * 2**-0.5
    own: Tensor = both.to(dtype).unflatten(1, (-1, width))
    return own


def finish_layer(
    layer: LayerWeights, x: Tensor, update: Tensor, own: Tensor | None, norm: Tensor | None, ops: Ops
) -> Any:
    """Compute a layer from behind its MLP, whose output is `update`, up to the next norm: returns its result.

    Args:
        x: The residual stream, updated in place.
        own: The layer's own input, [T, W].
    """
    assert layer.gemma4 is not None
    nothing, block = torch.zeros_like(update), layer.gemma4.own_input
    if (beside := layer.gemma4.beside) is not None:
        both = torch.zeros_like(x)
        ops.add_norm(both, update, beside.mlp_norm, None)
        routed_by = ops.add_norm(x, nothing, None, beside.router_norm)
        h = ops.add_norm(x, nothing, None, beside.input_norm)
        update = ops.add_norm(both, moe(beside.experts, h, routed_by), beside.output_norm, None)
    h = ops.add_norm(x, update, layer.post_mlp_norm, None)
    if block is not None and own is not None:
        gated = ops.activate(torch.cat((ops.project(block.gate, h), own), dim=1))
        ops.add_norm(x, ops.project(block.output, gated), block.norm, None)
    x *= layer.gemma4.factor
    return ops.add_norm(x, nothing, None, norm)
