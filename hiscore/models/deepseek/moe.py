"""Mixture of experts: routing, and the experts' outputs.

The products of the (token, expert) pairs are computed in one of three ways. Device, dtype and number of rows
decide which one, never the router's choices:

- grouped, on CUDA in bfloat16: pairs sorted by expert, one grouped product. Fixed shapes, no synchronisation.
- gathered, for few pairs, and on CUDA for any decode step: each pair gets a copy of its expert's weights, for a
  slice of the pairs at a time. Fixed shapes, no synchronisation.
- looped, for many pairs: expert by expert. The host must know which rows an expert has, so it cannot be captured
  in a CUDA graph.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from hiscore.models.deepseek.config import Experts
from hiscore.models.deepseek.loader import MlpWeights, MoeWeights
from hiscore.numerics import at_least_float32

MAX_GATHERED_WEIGHTS = 2**26
"""Elements of the weights copied at once: 256 MiB of float32."""
MAX_STEP_ROWS = 256
"""Rows of a decode step. On CUDA it is captured in a graph, so the host cannot wait for the router."""
WEIGHT_SUM_EPS = 1e-20
"""transformers adds it to a sum of weights before it divides by it."""


def mlp(w: MlpWeights, h: Tensor) -> Tensor:
    """A gated MLP, [T, hidden] to [T, hidden]."""
    return w.down(_gated(w.gate_up(h)))


def moe(w: MoeWeights, a: Experts, h: Tensor) -> Tensor:
    """Routed and shared experts, [T, hidden] to [T, hidden]."""
    experts, weights = route(w, a, h)
    each = _expert_outputs(w, h, experts)
    wide = at_least_float32(h.dtype)
    routed = (weights.to(wide)[:, None] @ each.to(wide)).squeeze(1)
    return routed.to(h.dtype) + mlp(w.shared, h)


def route(w: MoeWeights, a: Experts, h: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token.

    Only experts of the best groups are candidates; a group is as good as the sum of its two best experts. The
    router's correction affects the choice but not the weights.

    Args:
        w: Of the layer.
        a: Sizes.
        h: [T, hidden].

    Returns:
        int64 [T, per_token]: experts.
        float32 [T, per_token]: their weights.
    """
    scores = linear(h.float(), w.router).sigmoid()
    corrected = (scores + w.correction).unflatten(1, (a.groups, -1))
    best_groups = corrected.topk(2, dim=2).values.sum(dim=2).topk(a.groups_per_token, dim=1).indices
    excluded = torch.ones(corrected.shape[:2], dtype=torch.bool, device=h.device).scatter(
        1, best_groups, False
    )
    experts = (
        corrected.masked_fill(excluded[..., None], float("-inf")).flatten(1).topk(a.per_token, dim=1).indices
    )
    weights = scores.gather(1, experts)
    if a.normalise:
        weights = weights / (weights.sum(dim=1, keepdim=True) + WEIGHT_SUM_EPS)
    return experts, weights * a.scale


def _expert_outputs(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """The output of each token's experts: [T, per_token, hidden]."""
    if h.is_cuda and h.dtype == torch.bfloat16:
        return grouped(w, h, experts)
    few = experts.numel() * w.gate_up[0].numel() <= MAX_GATHERED_WEIGHTS
    if few or (h.is_cuda and len(h) <= MAX_STEP_ROWS):
        return gathered(w, h, experts)
    return looped(w, h, experts)


def grouped(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """The experts' outputs by grouped products over sorted pairs.

    Args:
        w: Of the layer.
        h: [T, hidden].
        experts: int64 [T, k].

    Returns:
        [T, k, hidden].
    """
    chosen, order = experts.flatten().sort(stable=True)
    every = torch.arange(len(w.gate_up), device=h.device)
    ends = torch.searchsorted(chosen, every, right=True).int()
    rows = h[order // experts.shape[1]]
    wide = torch.nn.functional.grouped_mm(rows, w.gate_up.transpose(1, 2), offs=ends)
    each: Tensor = torch.nn.functional.grouped_mm(_gated(wide), w.down.transpose(1, 2), offs=ends)
    by_token: Tensor = torch.empty_like(each).index_copy_(0, order, each).unflatten(0, experts.shape)
    return by_token


def gathered(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """`grouped`, by a copy of the weights for each pair."""
    rows = h[:, None].expand(*experts.shape, -1).flatten(0, 1)
    at_once = max(1, MAX_GATHERED_WEIGHTS // w.gate_up[0].numel())
    parts = []
    for row, expert in zip(rows.split(at_once), experts.flatten().split(at_once), strict=True):
        wide = (w.gate_up[expert] @ row[..., None]).squeeze(-1)
        parts.append((w.down[expert] @ _gated(wide)[..., None]).squeeze(-1))
    each: Tensor = torch.cat(parts).unflatten(0, experts.shape)
    return each


def looped(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """`grouped`, expert by expert; on CUDA the host waits for the router."""
    each = h.new_empty((*experts.shape, h.shape[1]))
    for expert in experts.unique().tolist():
        tokens, ranks = torch.nonzero(experts == expert, as_tuple=True)
        wide = linear(h[tokens], w.gate_up[expert])
        each[tokens, ranks] = linear(_gated(wide), w.down[expert])
    return each


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up
