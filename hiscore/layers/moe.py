"""Mixture of experts: a router sends each token to a few of many MLPs, whose outputs are added up by its weights.

One layer for all families; `weights.Routing` says in what they differ. On the CPU the experts are computed one by
one, each for the tokens that chose it; on CUDA by `moe_triton`, without waiting for the host.
"""

import torch
from torch import Tensor

from hiscore.device.numerics import widen
from hiscore.layers import scaled_fp8
from hiscore.layers.activations import gated
from hiscore.layers.products import linear
from hiscore.layers.weights import Experts, Mlp

WEIGHT_SUM_EPS = 1e-20
"""transformers adds it to a sum of sigmoid weights before it divides by it."""


def moe(w: Experts, h: Tensor, routed_by: Tensor | None = None) -> Tensor:
    """Routed and shared experts, [T, hidden] to [T, hidden]; `routed_by` is what the router reads instead of h."""
    # PyTorch's own product, as in transformers: another rounding could choose another expert.
    read = h if routed_by is None else routed_by
    logits = torch.nn.functional.linear(read.float(), w.router, w.router_bias)
    chosen, weights = route(w, logits)
    each = looped(w, h, chosen)
    routed = (weights.to(widen(each).dtype)[:, None] @ widen(each)).squeeze(1).to(h.dtype)
    return add_shared(w, routed, h, logits)


def add_shared(w: Experts, routed: Tensor, h: Tensor, logits: Tensor) -> Tensor:
    """Add the output of the shared expert, if there is one, to that of the routed ones, [T, hidden]."""
    if w.shared is None:
        return routed
    shared = shared_mlp(w.shared, h, w.activation)
    return routed + (shared * logits[:, -1:].sigmoid().to(shared.dtype) if w.gates_shared else shared)


def shared_mlp(mlp: Mlp, h: Tensor, activation: str) -> Tensor:
    """A gated MLP, [T, hidden] to [T, hidden]."""
    return mlp.down(gated(mlp.gate_up(h), activation))


def route(w: Experts, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Choose experts by the router's logits, float32 [T, E]; return them and their weights, [T, per_token]."""
    how, logits = w.routing, logits[:, :-1] if w.gates_shared else logits
    if how.sigmoid:
        return _route_by_sigmoid(w, logits)
    best = logits.topk(how.per_token, dim=1)
    among = best.values if how.normalise else logits
    weights = (best.values - among.logsumexp(dim=1, keepdim=True)).exp() * how.scale
    return best.indices, weights if w.factors is None else weights * w.factors[best.indices]


def _route_by_sigmoid(w: Experts, logits: Tensor) -> tuple[Tensor, Tensor]:
    how, scores = w.routing, logits.sigmoid()
    corrected = scores if w.correction is None else scores + w.correction
    grouped = corrected.unflatten(1, (how.groups, -1))
    best = grouped.topk(2, dim=2).values.sum(dim=2).topk(how.groups_per_token, dim=1).indices
    excluded = torch.ones(grouped.shape[:2], dtype=torch.bool, device=logits.device).scatter(1, best, False)
    candidates = grouped.masked_fill(excluded[..., None], float("-inf")).flatten(1)
    experts = candidates.topk(how.per_token, dim=1).indices
    weights = scores.gather(1, experts)
    if how.normalise:
        weights = weights / (weights.sum(dim=1, keepdim=True) + WEIGHT_SUM_EPS)
    return experts, weights * how.scale


def looped(w: Experts, h: Tensor, chosen: Tensor) -> Tensor:
    """The output of each token's experts, [T, per_token, hidden], zeros for experts that other ranks hold.

    The host must know the rows of each expert, so experts are computed one by one.
    """
    each = h.new_zeros((*chosen.shape, h.shape[1]))
    chosen = chosen - w.first
    for expert in chosen.unique().tolist():
        if not 0 <= expert < len(w.gate_up):
            continue
        tokens, ranks = torch.nonzero(chosen == expert, as_tuple=True)
        if w.gate_up_scales is not None and w.down_scales is not None:
            wide = scaled_fp8.multiply(h[tokens], w.gate_up[expert], w.gate_up_scales[expert])
            inner = gated(wide, w.activation)
            each[tokens, ranks] = scaled_fp8.multiply(inner, w.down[expert], w.down_scales[expert])
            continue
        wide = linear(h[tokens], w.gate_up[expert], _of(w.gate_up_bias, expert))
        each[tokens, ranks] = linear(gated(wide, w.activation), w.down[expert], _of(w.down_bias, expert))
    return each


def _of(biases: Tensor | None, expert: int) -> Tensor | None:
    return None if biases is None else biases[expert]
