"""From hidden states to logits, for the scored rows alone.

Only the labels' rows of the head are needed for the labels' logits. The probability of a label over the whole
vocabulary needs one number more for each row, the log of the normaliser, which is summed up over slices of the
vocabulary: logits of rows x vocabulary never exist at once.
"""

import torch
from torch import Tensor

VOCABULARY_SLICE = 8_192
ROW_SLICE = 1_024


def label_logits(hidden: Tensor, head: Tensor, labels: Tensor, soft_cap: float | None) -> Tensor:
    """Logits of some of the head's rows: hidden [R, H], labels int64 [L] -> float32 [R, L]."""
    return _capped(hidden.float() @ head[labels].float().T, soft_cap)


def log_normaliser(hidden: Tensor, head: Tensor, soft_cap: float | None) -> Tensor:
    """log(sum(exp(logits))) over the whole vocabulary: hidden [R, H] -> float32 [R]."""
    total = torch.full((len(hidden),), float("-inf"), device=hidden.device)
    for part in head.split(VOCABULARY_SLICE):
        part = part.float()
        for first in range(0, len(hidden), ROW_SLICE):
            rows = slice(first, first + ROW_SLICE)
            logits = _capped(hidden[rows].float() @ part.T, soft_cap)
            total[rows] = torch.logaddexp(total[rows], logits.logsumexp(dim=-1))
    return total


def _capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    return logits if soft_cap is None else torch.tanh(logits / soft_cap) * soft_cap
