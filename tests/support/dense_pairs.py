"""Attention in both directions by an explicit mask over all rows, in float64."""

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.bidirectional import BidirectionalShape, RelativeProjections
from hiscore.attention.metadata import Forward
from hiscore.scoring.packing.pairs import PairRules, as_pairs, pack_pairs
from tests.support.strategies import random_tokens

FIRST_ROWS_READ = PairRules()


def forwards_of(lengths: list[int], budget: int, rules: PairRules = FIRST_ROWS_READ) -> tuple[Forward, ...]:
    """Forwards over pairs of these lengths."""
    prompt = random_tokens(np.random.default_rng(1), 0, lengths, 100).prompt()
    return pack_pairs([as_pairs(prompt)], budget, rules).forwards


def random_relative(
    heads: int, positions: int, head_dim: int, context: int, terms: str = "both"
) -> tuple[Tensor, RelativeProjections]:
    """Rows for every distance, of which far ones share the last, and "keys", "queries", "both" or "biases"."""
    generator = torch.Generator().manual_seed(3)
    keys, queries = (torch.randn(heads, positions, head_dim, generator=generator) for _ in range(2))
    rows = (torch.arange(1 - context, context) + positions // 2).clamp(0, positions - 1).int()
    of_keys, of_queries = terms in ("keys", "both"), terms in ("queries", "both")
    biases = torch.randn(heads, positions, generator=generator) if terms == "biases" else None
    return rows, RelativeProjections(keys if of_keys else None, queries if of_queries else None, biases)


def dense_pairs(
    forward: Forward, shape: BidirectionalShape, layer: int, qkv: Tensor, relative: RelativeProjections | None
) -> Tensor:
    """What `BidirectionalAttention.attend` must return for the rows of a forward: [T, heads head_dim]."""
    q, k, v = qkv.double().cpu().unflatten(1, (3, shape.heads, shape.head_dim)).permute(1, 2, 0, 3)
    edges = forward.cu_seqlens
    segment = torch.from_numpy(np.repeat(np.arange(len(edges) - 1), np.diff(edges)))
    distance = torch.arange(len(qkv))[:, None] - torch.arange(len(qkv))
    seen = segment[:, None] == segment
    if (reach := shape.reaches[layer]) is not None:
        seen &= distance.abs() <= reach
    if shape.causal:
        seen &= distance >= 0
    logits = q @ k.mT
    if relative is not None and shape.relative_rows is not None:
        at = shape.relative_rows.cpu()[(distance + shape.farthest).clamp(0, 2 * shape.farthest)].long()
        for i, table in ((0, relative.keys), (1, relative.queries)):
            if table is not None:
                # [heads, T, T, head_dim]: the relative position of each row and column.
                gathered = table.double().cpu()[:, at]
                logits += ((q[:, :, None] if i == 0 else k[:, None]) * gathered).sum(-1)
    logits = logits * shape.scale
    if relative is not None and relative.biases is not None:
        logits += relative.biases.double().cpu()[:, at]
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)
