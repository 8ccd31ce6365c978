"""The lightning indexer, which selects the earlier tokens that a layer attends to.

A token's score is the sum over the index heads of gate * relu(q k). Scores are float32, queries and keys have the
model's dtype, as in transformers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.models.deepseek.config import Indexer
from hiscore.models.deepseek.functional import LATENT_EPS, rotate
from hiscore.models.deepseek.weights import IndexerWeights


@dataclass(frozen=True)
class IndexQuery:
    q: Tensor  # [T, heads, head_dim], in the keys' dtype
    gates: Tensor  # float32 [T, heads], with all scales multiplied in


def index_query(
    w: IndexerWeights, a: Indexer, h: Tensor, q_low: Tensor, cos: Tensor, sin: Tensor
) -> IndexQuery:
    """Compute the index queries of new rows.

    Args:
        h: [T, hidden], the layer's normalised input.
        q_low: [T, q_rank], the low-rank query of attention.
        cos, sin: [T, rope_dim / 2].
    """
    q = _rotated(
        w.query(q_low).unflatten(1, (a.heads, a.head_dim)), cos[:, None], sin[:, None], a.interleaved
    )
    gates = torch.nn.functional.linear(h.to(w.head_weights.dtype), w.head_weights).float()
    gates *= (a.heads * a.head_dim) ** -0.5
    return IndexQuery(q, gates)


def index_key(w: IndexerWeights, a: Indexer, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute the index keys, [T, head_dim], of new rows, which the cache keeps; see `index_query`."""
    k = torch.nn.functional.layer_norm(w.key(h), (a.head_dim,), w.key_norm, w.key_norm_bias, LATENT_EPS)
    return _rotated(k, cos, sin, a.interleaved)


def index_scores(query: IndexQuery, keys: Tensor) -> Tensor:
    """Score N keys, [N, head_dim] if the rows share them, else [T, N, head_dim], for T rows: float32 [T, N]."""
    raised = torch.relu(query.q.float() @ keys.float().transpose(-1, -2))
    return (query.gates[:, None] @ raised).squeeze(1)


def select_positions(scores: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select the k best positions of each row, or all of them if there are no more; ties go to the lower position.

    Scores are float32 [R, N]; those from a row's length on are ignored. The results are int32: positions [R,
    min(k, N)], ascending, padded with -1, and their numbers [R].
    """
    width = scores.shape[1]
    unseen = torch.arange(width, device=scores.device) >= lengths[:, None]
    # A stable sort: topk promises no order among equal scores.
    order = scores.masked_fill(unseen, float("-inf")).sort(dim=1, descending=True, stable=True).indices[:, :k]
    order = order.masked_fill(order >= lengths[:, None], width).sort(dim=1).values
    return order.masked_fill(order == width, -1).int(), lengths.clamp(max=k).int()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first dimensions and leave the rest. (In attention's heads the last ones are rotated.)"""
    rotated, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    return torch.cat((rotate(rotated, cos, sin, interleaved), rest), dim=-1)
