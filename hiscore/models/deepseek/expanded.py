"""Latent attention with keys and values expanded for each head, where rows attend to all tokens before them.

Absorbed, a pair of a row and a token costs row_dim + latent_rank multiplications a head, in DeepSeek-V3.2 1,088;
expanded it costs nope_dim + rope_dim + value_dim, 320. Expanding a token costs as much as absorbing a row. That is
too much for few rows behind many tokens, but they are expanded all the same: what is cheaper depends on where a
prompt is cut, and a row's bits must not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights

ROWS = 64
"""Rows of a tile in plain torch. Tiles begin at its multiples in a sequence, wherever a forward's rows begin."""
GROUP_TOKENS = 2**16
"""Tokens whose latents are gathered at once, if one sequence has no more."""


@dataclass(frozen=True)
class FullRows:
    """New rows of one sequence, its last ones, which attend to all tokens up to themselves."""

    rows: slice
    """Places in the forward."""
    slots: Tensor  # int64 [length]: pool slots of all its tokens

    @property
    def count(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def length(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class Expanded:
    """K tokens of some sequences, one behind another, for some heads."""

    keys: Tensor  # [K, heads, nope_dim]
    tails: Tensor  # [K, rope_dim], for all heads
    values: Tensor  # [K, heads, value_dim]


def costs_more(a: DsaArchitecture, rows: int) -> bool:
    """Return whether expanding what so many rows attend to costs more than absorbing their queries does."""
    of_token = a.nope_dim + a.value_dim
    return rows * (2 * a.latent_rank - of_token) < a.latent_rank * of_token


def groups(sequences: Sequence[FullRows]) -> Iterator[list[FullRows]]:
    """Sequences that are computed at once: of no more than `GROUP_TOKENS`, or a single one."""
    group: list[FullRows] = []
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
    new: Projected, seen: Expanded, sequences: Sequence[FullRows], heads: slice, scale: float, out: Tensor
) -> None:
    """Attend in PyTorch, in float32 at least, for some heads; writes theirs of out [T, heads, value_dim].

    The shapes of a row's products and sums depend on its position alone: tiles are filled up with zeros. `seen`
    are the tokens of the sequences, in their order.
    """
    wide, begin = at_least_float32(out.dtype), 0
    for each in sequences:
        at, missing = slice(begin, begin + each.length), -each.length % ROWS
        keys, values = (
            _filled(part[at].transpose(0, 1).to(wide), missing) for part in (seen.keys, seen.values)
        )
        tails, before = _filled(seen.tails[at].to(wide), missing), each.length - each.count
        tokens = torch.arange(each.length + missing, device=out.device)
        for first in range(before - before % ROWS, each.length, ROWS):
            start, last = max(first, before), min(first + ROWS, each.length)
            rows = slice(each.rows.start + start - before, each.rows.start + last - before)
            nope, rotated = (
                _filled(part[rows, heads].transpose(0, 1).to(wide), first + ROWS - last, start - first)
                for part in (new.nope, new.rotated)
            )
            end = first + ROWS
            logits = (nope @ keys[:, :end].transpose(1, 2) + rotated @ tails[:end].T) * scale
            unseen = tokens[:end] > tokens[first:end, None]
            weights = logits.masked_fill_(unseen, float("-inf")).softmax(dim=-1)
            attended = (weights @ values[:, :end])[:, start - first : last - first]
            out[rows, heads] = attended.transpose(0, 1).to(out.dtype)
        begin += each.length


def _filled(x: Tensor, after: int, before: int = 0) -> Tensor:
    """Pad the dimension before the last with so many rows of zeros before and after."""
    return torch.nn.functional.pad(x, (0, 0, before, after))
