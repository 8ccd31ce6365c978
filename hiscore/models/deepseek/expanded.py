"""Latent attention with keys and values expanded for each head, where rows attend to all tokens before them.

Absorbed, a pair of a row and a token costs row_dim + latent_rank multiplications a head, in DeepSeek-V3.2 1,088;
expanded it costs nope_dim + rope_dim + value_dim, 320. Expanding a token costs as much as absorbing a row. So it
pays where rows are many beside the tokens before them, and no row selects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights
from hiscore.numerics import at_least_float32

GROUP_TOKENS = 2**16
"""Tokens whose latents are gathered at once, if one sequence has no more."""


@dataclass(frozen=True)
class WholeRows:
    """New rows of one sequence, its last ones, which attend to all tokens up to themselves."""

    rows: slice
    """Of the forward."""
    slots: Tensor
    """int64 [length]: pool slots of all its tokens."""

    @property
    def count(self) -> int:
        """How many."""
        return int(self.rows.stop - self.rows.start)

    @property
    def length(self) -> int:
        """Tokens of the sequence so far."""
        return len(self.slots)


@dataclass(frozen=True)
class Expanded:
    """K tokens of some sequences, one behind another, for some heads."""

    keys: Tensor
    """[K, heads, nope_dim]"""
    tails: Tensor
    """[K, rope_dim], for all heads."""
    values: Tensor
    """[K, heads, value_dim]"""


def pays(a: DsaArchitecture, sequences: Sequence[WholeRows]) -> bool:
    """Whether a forward of these rows takes fewer multiplications with keys and values expanded."""
    of_token = a.latent_rank * (a.nope_dim + a.value_dim)
    of_pair = a.row_dim + a.latent_rank - (a.nope_dim + a.rope_dim + a.value_dim)
    tokens = sum(each.length - each.count for each in sequences)
    pairs = sum(each.count * (2 * each.length - each.count + 1) // 2 for each in sequences)
    return tokens * of_token < pairs * of_pair


def groups(sequences: Sequence[WholeRows]) -> Iterator[list[WholeRows]]:
    """Sequences that are computed at once: of no more than `GROUP_TOKENS`, or a single one."""
    group: list[WholeRows] = []
    for each in sequences:
        if group and sum(other.length for other in group) + each.length > GROUP_TOKENS:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def expand(w: MlaWeights, a: DsaArchitecture, rows: Tensor, heads: slice) -> Expanded:
    """Keys and values of some heads, from cache rows, [K, row_dim]."""
    latents = rows[:, : a.latent_rank]
    keys = latents @ w.to_latent[heads].flatten(0, 1).T
    values = latents @ w.from_latent[heads].transpose(0, 1).flatten(1)
    return Expanded(
        keys.unflatten(1, (-1, a.nope_dim)), rows[:, a.latent_rank :], values.unflatten(1, (-1, a.value_dim))
    )


def heads_at_once(a: DsaArchitecture, tokens: int, max_elements: int) -> Iterator[slice]:
    """All heads, in groups for which so many tokens have no more than `max_elements` numbers."""
    step = min(a.heads, max(1, max_elements // (tokens * (a.nope_dim + a.value_dim))))
    for begin in range(0, a.heads, step):
        yield slice(begin, min(begin + step, a.heads))


def attend(
    new: Projected, seen: Expanded, sequences: Sequence[WholeRows], heads: slice, scale: float, max_elements: int,
    out: Tensor,
) -> None:  # fmt: skip
    """Attend in PyTorch, in float32 at least.

    Args:
        new: Of the forward's rows.
        seen: The sequences' tokens.
        sequences: In their order.
        heads: Those that `seen` is of.
        scale: Of q k^T.
        max_elements: Of the logits that exist at once.
        out: [T, heads, value_dim], of all heads; written for these.
    """
    wide, begin = at_least_float32(out.dtype), 0
    for each in sequences:
        at = slice(begin, begin + each.length)
        keys, values = (part[at].transpose(0, 1).to(wide) for part in (seen.keys, seen.values))
        tails, before = seen.tails[at].to(wide), each.length - each.count
        tokens = torch.arange(each.length, device=out.device)
        step = max(1, max_elements // (each.length * keys.shape[0]))
        for first in range(0, each.count, step):
            last = min(first + step, each.count)
            rows = slice(each.rows.start + first, each.rows.start + last)
            nope, turned = (part[rows, heads].transpose(0, 1).to(wide) for part in (new.nope, new.turned))
            logits = (nope @ keys.transpose(1, 2) + turned @ tails.T) * scale
            unseen = tokens > tokens[before + first : before + last, None]
            weights = logits.masked_fill_(unseen, float("-inf")).softmax(dim=-1)
            out[rows, heads] = (weights @ values).transpose(0, 1).to(out.dtype)
        begin += each.length
