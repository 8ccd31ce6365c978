"""Mixture of experts: which experts a token goes to, and what they make of it.

An expert's products for a (token, expert) pair are computed in one of three ways. Which one follows from device,
dtype and number of rows alone, never from what the router chose:

- grouped, on CUDA devices in bfloat16: pairs sorted by expert, one grouped product. Fixed shapes, nothing waits.
- gathered, for few pairs, and on CUDA devices for as many rows as a step may have: each pair gets a copy of its
  expert's weights, a slice of the pairs at a time. Fixed shapes, nothing waits.
- looped, for many pairs: expert by expert over its rows. The host must know them, so no CUDA graph holds it.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from hiscore.models.deepseek.config import Experts
from hiscore.models.deepseek.loader import MlpWeights, MoeWeights
from hiscore.numerics import at_least_float32

# Copies of weights alive at once, in elements: 256 MiB of float32.
MAX_GATHERED = 2**26
# Rows of a decode step at most: on a CUDA device a graph holds it, so its host cannot wait for a choice.
MOST_STEP_ROWS = 256
# What transformers adds to a sum of weights before it divides by it.
TINY = 1e-20


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
    """Each token's experts int64 [T, per_token] and their weights float32, from h [T, hidden].

    Only the groups whose two best experts score highest take part. The correction steers the choice alone.
    """
    scores = linear(h.float(), w.router).sigmoid()
    corrected = (scores + w.correction).unflatten(1, (a.groups, -1))
    best_groups = corrected.topk(2, dim=2).values.sum(dim=2).topk(a.groups_per_token, dim=1).indices
    shut = torch.ones(corrected.shape[:2], dtype=torch.bool, device=h.device).scatter(1, best_groups, False)
    experts = (
        corrected.masked_fill(shut[..., None], float("-inf")).flatten(1).topk(a.per_token, dim=1).indices
    )
    weights = scores.gather(1, experts)
    if a.normalise:
        weights = weights / (weights.sum(dim=1, keepdim=True) + TINY)
    return experts, weights * a.scale


def _expert_outputs(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """What each token's experts make of it: [T, per_token, hidden]."""
    if h.is_cuda and h.dtype == torch.bfloat16:
        return grouped(w, h, experts)
    few = experts.numel() * w.gate_up[0].numel() <= MAX_GATHERED
    if few or (h.is_cuda and len(h) <= MOST_STEP_ROWS):
        return gathered(w, h, experts)
    return looped(w, h, experts)


def grouped(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """h [T, hidden], experts int64 [T, k] to [T, k, hidden], by grouped products over sorted pairs."""
    chosen, order = experts.flatten().sort(stable=True)
    every = torch.arange(len(w.gate_up), device=h.device)
    ends = torch.searchsorted(chosen, every, right=True).int()
    rows = h[order // experts.shape[1]]
    wide = torch.nn.functional.grouped_mm(rows, w.gate_up.transpose(1, 2), offs=ends)
    each: Tensor = torch.nn.functional.grouped_mm(_gated(wide), w.down.transpose(1, 2), offs=ends)
    by_token: Tensor = torch.empty_like(each).index_copy_(0, order, each).unflatten(0, experts.shape)
    return by_token


def gathered(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """The same, by a copy of the weights for each pair."""
    rows = h[:, None].expand(*experts.shape, -1).flatten(0, 1)
    at_once = max(1, MAX_GATHERED // w.gate_up[0].numel())
    parts = []
    for row, expert in zip(rows.split(at_once), experts.flatten().split(at_once), strict=True):
        wide = (w.gate_up[expert] @ row[..., None]).squeeze(-1)
        parts.append((w.down[expert] @ _gated(wide)[..., None]).squeeze(-1))
    each: Tensor = torch.cat(parts).unflatten(0, experts.shape)
    return each


def looped(w: MoeWeights, h: Tensor, experts: Tensor) -> Tensor:
    """The same, expert by expert; on a CUDA device the host waits for the choice."""
    each = h.new_empty((*experts.shape, h.shape[1]))
    for expert in experts.unique().tolist():
        tokens, ranks = torch.nonzero(experts == expert, as_tuple=True)
        wide = linear(h[tokens], w.gate_up[expert])
        each[tokens, ranks] = linear(_gated(wide), w.down[expert])
    return each


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up
