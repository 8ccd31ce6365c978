"""The lightning indexer: which earlier tokens a layer attends to.

A token's score is the sum over the index heads of a gate times relu(q k); scores are float32 as in transformers,
without the Hadamard transform and the fp8 of DeepSeek's own kernels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.models.deepseek.config import Indexer
from hiscore.models.deepseek.functional import LATENT_EPS, rotate
from hiscore.models.deepseek.loader import IndexerWeights


@dataclass(frozen=True)
class IndexQuery:
    """What new rows ask: q [T, heads, head_dim] in the keys' dtype; gates float32 [T, heads], with all scales."""

    q: Tensor
    gates: Tensor


def index_query(
    w: IndexerWeights, a: Indexer, h: Tensor, q_low: Tensor, cos: Tensor, sin: Tensor
) -> IndexQuery:
    """h [T, hidden]: the layer's input; q_low [T, q_rank]; cos, sin [T, rope_dim / 2]."""
    q = _rotated(
        w.query(q_low).unflatten(1, (a.heads, a.head_dim)), cos[:, None], sin[:, None], a.interleaved
    )
    gates = torch.nn.functional.linear(h.to(w.head_weights.dtype), w.head_weights).float()
    return IndexQuery(q, gates * (a.heads * a.head_dim) ** -0.5)


def index_key(w: IndexerWeights, a: Indexer, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The new rows' index keys, [T, head_dim]: what the index keeps."""
    k = torch.nn.functional.layer_norm(w.key(h), (a.head_dim,), w.key_norm, w.key_norm_bias, LATENT_EPS)
    return _rotated(k, cos, sin, a.interleaved)


def index_scores(query: IndexQuery, keys: Tensor) -> Tensor:
    """float32 [T, N]; keys: [N, head_dim] where the rows share them, [T, N, head_dim] where each has its own."""
    raised = torch.relu(query.q.float() @ keys.float().transpose(-1, -2))
    return (query.gates[:, None] @ raised).squeeze(1)


def select_positions(scores: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row's first positions, ties to the lower one; all of them where there are no more than k.

    scores: float32 [R, N]; lengths: integers [R], at most N. Returns positions int32 [R, min(k, N)], ascending and
    padded with -1, and how many there are, int32 [R]. What stands in scores beyond a row's length does not matter.
    """
    width = scores.shape[1]
    unseen = torch.arange(width, device=scores.device) >= lengths[:, None]
    # A stable sort, since topk promises no order among equals.
    order = scores.masked_fill(unseen, float("-inf")).sort(dim=1, descending=True, stable=True).indices[:, :k]
    order = order.masked_fill(order >= lengths[:, None], width).sort(dim=1).values
    return order.masked_fill(order == width, -1).int(), lengths.clamp(max=k).int()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first dimensions turned, the rest as they are: the other way round than in attention's heads."""
    turned, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    return torch.cat((rotate(turned, cos, sin, interleaved), rest), dim=-1)
