"""Multi-head latent attention: the projections of new tokens, and attention in its absorbed form.

A cache row is the token's normalised latent and the rotated key that all heads share. Absorbed, all heads read the
same row: a query is projected to the latents' space before attention, and the result is projected back after it.
`expanded` is the other form.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.functional import LATENT_EPS, rms_norm, rotate
from hiscore.models.deepseek.weights import MlaWeights


@dataclass(frozen=True)
class Projected:
    """Queries and cache rows of T new tokens in one layer."""

    q_low: Tensor  # [T, q_rank]: the low-rank query, which the indexer reads too
    nope: Tensor  # [T, heads, nope_dim]: the part of the queries that is not rotated
    rotated: Tensor  # [T, heads, rope_dim]: the rotated part
    row: Tensor  # [T, row_dim], for the cache

    def of(self, rows: Tensor) -> "Projected":
        """Queries of some rows, int64 [S]."""
        return Projected(self.q_low[rows], self.nope[rows], self.rotated[rows], self.row[rows])


def project(w: MlaWeights, a: DsaArchitecture, h: Tensor, cos: Tensor, sin: Tensor) -> Projected:
    """Compute the queries and cache rows of new tokens from h, [T, hidden], the layer's normalised input."""
    q_low, latent, shared_key = w.down(h).split([a.q_rank, a.latent_rank, a.rope_dim], dim=1)
    q_low = rms_norm(q_low, w.q_norm, LATENT_EPS)
    latent = rms_norm(latent, w.latent_norm, LATENT_EPS)
    row = torch.cat((latent, rotate(shared_key, cos, sin, interleaved=True)), dim=1)
    nope, rotated = w.q_up(q_low).unflatten(1, (a.heads, -1)).split([a.nope_dim, a.rope_dim], dim=2)
    return Projected(q_low, nope, rotate(rotated, cos[:, None], sin[:, None], interleaved=True), row)


def absorbed(w: MlaWeights, new: Projected) -> Tensor:
    """Queries in the latents' space, [T, heads, row_dim]."""
    to_latents = (new.nope.transpose(0, 1) @ w.to_latent).transpose(0, 1)
    return torch.cat((to_latents, new.rotated), dim=2)


def values(w: MlaWeights, attended: Tensor) -> Tensor:
    """Each head's values, [T, heads, value_dim], of attended latents, [T, heads, latent_rank]."""
    return (attended.transpose(0, 1) @ w.from_latent).transpose(0, 1)


def output(w: MlaWeights, attended: Tensor) -> Tensor:
    """Project attended values, [T, heads, value_dim], to the residual stream, [T, hidden]."""
    return w.output(attended.flatten(1))


def attend_latents(q: Tensor, rows: Tensor, hidden: Tensor, scale: float, latent_rank: int) -> Tensor:
    """softmax(q rows^T scale) latents, in float32 at least: [T, heads, latent_rank].

    Args:
        q: [T, heads, row_dim].
        rows: [N, row_dim] if the queries share them, else [T, N, row_dim]; the latent leads.
        hidden: bool [T, N]: the rows that a query does not see. It must see at least one.
    """
    wide = at_least_float32(q.dtype)
    rows = rows.to(wide)
    logits = (q.to(wide) @ rows.transpose(-1, -2)) * scale
    weights = logits.masked_fill(hidden[:, None], float("-inf")).softmax(dim=-1)
    return (weights @ rows[..., :latent_rank]).to(q.dtype)
