"""Sample token ids from logits, on any device and without waiting for it.

A token's weight is its probability in fixed point. Sums of integers do not depend on their order, so a row's token
depends neither on how a device adds nor on the other rows of the batch.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.worker.sampling_options import OPTIONS, fill_options
from hiscore.device.copies import upload

# The likeliest token's weight: a token 2^33 times less likely is never drawn. Sums over up to 2^21 tokens are
# exact in float64 too.
UNIT = 2.0**32


def finite(logits: Tensor) -> Tensor:
    """Mark the rows of logits [R, V] that can be sampled, bool [R]: no NaN, no +inf, and something above -inf."""
    return torch.isfinite(logits.amax(-1))


def greedy(logits: Tensor) -> Tensor:
    """Find each row's largest logit, of equal ones the lowest id; any id if not `finite`: [R, V] to int64 [R]."""
    return logits.argmax(-1)


def sample_batch(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Sample one token id per row: float32 [R, V] to int64 [R]."""
    if not sampling.temperature.any():
        return greedy(logits)
    if logits.is_cuda:
        # Comes with CUDA builds of torch alone.
        from hiscore.decoding.worker.triton_sampler import draw

        options, nowhere = np.zeros((OPTIONS, len(logits))), np.full(len(logits), -1, np.int32)
        fill_options(options, nowhere, replace(sampling, penalties=None))
        return draw(logits, upload(options, logits.device))
    filtered = bool((sampling.top_k > 0).any() or (sampling.top_p < 1).any())
    arrays = sampling.temperature, sampling.top_k, sampling.top_p, sampling.uniforms
    temperature, top_k, top_p, uniforms = map(torch.from_numpy, arrays)
    floor = None
    if sampling.min_p is not None and sampling.min_p.any():
        floor = torch.from_numpy(sampling.min_p)
    return sample(logits, temperature, top_k, top_p, uniforms, floor, filtered=filtered)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    uniforms: Tensor,
    min_p: Tensor | None = None,
    *,
    filtered: bool = True,
) -> Tensor:
    """Sample a token id per row, int64 [R]: temperature, min-p, top-k, top-p, then a draw in the order of ids.

    Args:
        logits: float32 [R, V]. A row that is not `finite` gives an arbitrary id of the vocabulary.
        temperature: float [R]; 0 is `greedy`.
        top_k: int [R]; 0 is off. Of equal logits at the limit the lower ids stay.
        top_p: float [R], in (0, 1]: keep the fewest likeliest tokens that hold this share of what the others left.
        uniforms: float64 [R], in [0, 1): where to draw in the cumulative distribution.
        min_p: float [R]: keep tokens with at least this share of the likeliest token's probability; None: all.
        filtered: False if the caller knows that no row has a top-k or a top-p: the same ids without a sort.
    """
    weights = _weights(logits, temperature)
    if min_p is not None:
        weights = weights * (weights >= (min_p.double() * UNIT)[:, None])
    if filtered:
        weights = weights * _kept(logits, weights, top_k, top_p)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    drawn = (uniforms.double() * total).long()[:, None]
    # Only rows that are not finite exceed the last id: x * u < x for u < 1, even after rounding.
    ids = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return torch.where(temperature == 0, greedy(logits), ids)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Make fixed-point weights, int64 [R, V]: the softmax at a temperature, scaled to a maximum of `UNIT`."""
    limits = torch.finfo(logits.dtype)
    # Avoids 0 / 0 and inf / inf: at one limit only the largest logits remain, at the other all finite ones do.
    divisor = temperature.to(logits.dtype).clamp(limits.tiny, limits.max)[:, None]
    shares = torch.exp((logits - logits.amax(-1, keepdim=True)) / divisor)
    return (shares * UNIT).round().long()


def _kept(logits: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Mark the tokens that top-k and then top-p keep: bool [R, V]."""
    vocabulary = logits.shape[-1]
    order = torch.sort(logits, stable=True, descending=True).indices
    rank = torch.arange(vocabulary, device=logits.device)
    among_k = rank < torch.where(top_k == 0, vocabulary, top_k)[:, None]
    ranked = weights.gather(-1, order) * among_k
    cumulative = ranked.cumsum(-1)
    before = (cumulative - ranked).double()
    enough = top_p.double() * cumulative[:, -1]
    # Keeps the likeliest token where top_p is so small that it rounds to 0.
    among_p = (before < enough[:, None]) | (rank == 0)
    return torch.zeros_like(among_k).scatter(-1, order, among_k & among_p)
