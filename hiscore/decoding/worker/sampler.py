"""Logits to token ids, on any device and without waiting for it.

A token's weight is its probability in fixed point. Integers add up to the same sum in any order, so what a row
gives does not depend on how a device adds, nor on how many rows stand beside it.
"""

import torch
from torch import Tensor

# The likeliest token's weight: what is 2^33 times less likely is never drawn. Sums over up to 2^21 tokens are
# exact as float64 too.
UNIT = 2.0**32


def finite(logits: Tensor) -> Tensor:
    """Whether each row of logits [R, V] can be read, bool [R]: no NaN, no +inf, and something above -inf."""
    return torch.isfinite(logits.amax(-1))


def greedy(logits: Tensor) -> Tensor:
    """The id of the largest logit of each row [R, V], int64 [R]; of equal ones the lowest.

    A row that is not `finite` gives some id of the vocabulary.
    """
    return logits.argmax(-1)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    uniforms: Tensor,
    *,
    filtered: bool = True,
) -> Tensor:
    """One id for each row, int64 [R]: temperature, then top-k, then top-p, then a draw in the order of ids.

    logits: float32 [R, V]. temperature: float [R], 0 is `greedy`. top_k: int [R], 0 is off; of equal logits at its
    end the lower ids stay. top_p: float [R] in (0, 1]: the fewest likeliest tokens whose share of what top-k left
    reaches it. uniforms: float64 [R] in [0, 1): where in the distribution's cumulative sum to draw.

    filtered: False where the caller knows that no row has a top-k or a top-p. The ids are the same, without
    a sort. A row that is not `finite` gives some id of the vocabulary.
    """
    weights = _weights(logits, temperature)
    if filtered:
        weights = weights * _kept(logits, weights, top_k, top_p)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    drawn = (uniforms.double() * total).long()[:, None]
    # Beyond the last id only where a row is not finite: a product with less than 1 is less, when rounded too.
    ids = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return torch.where(temperature == 0, greedy(logits), ids)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """int64 [R, V]: the softmax at a temperature, times whatever makes the largest one `UNIT`."""
    limits = torch.finfo(logits.dtype)
    # No 0 / 0 and no inf / inf: at the one limit only the largest logits are left, at the other all finite ones.
    divisor = temperature.to(logits.dtype).clamp(limits.tiny, limits.max)[:, None]
    shares = torch.exp((logits - logits.amax(-1, keepdim=True)) / divisor)
    return (shares * UNIT).round().long()


def _kept(logits: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """bool [R, V]: what top-k and then top-p leave of each row."""
    vocabulary = logits.shape[-1]
    order = torch.sort(logits, stable=True, descending=True).indices
    rank = torch.arange(vocabulary, device=logits.device)
    among_k = rank < torch.where(top_k == 0, vocabulary, top_k)[:, None]
    ranked = weights.gather(-1, order) * among_k
    cumulative = ranked.cumsum(-1)
    before = (cumulative - ranked).double()
    enough = top_p.double() * cumulative[:, -1]
    # The likeliest stays where a top_p is so small that its float is 0.
    among_p = (before < enough[:, None]) | (rank == 0)
    return torch.zeros_like(among_k).scatter(-1, order, among_k & among_p)
