"""From hidden states to logits, for the scored rows alone.

Only the labels' rows of the head are needed for the labels' logits. The probability of a label over the whole
vocabulary needs one number more for each row, the log of the normaliser, which is summed up over slices: logits of
all rows x vocabulary never exist at once.
"""

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.numerics import soft_cap

# Logits alive at once: 256 rows of a vocabulary of 151,936 are 148 MiB.
ROW_SLICE = 256
# Sets of labels whose rows stay at hand, and the largest of them; callers ask for the same few again and again.
LABEL_SETS = 256
LABELS_TO_KEEP = 64


class LMHead:
    """The head of a causal LM or a classifier, [rows, hidden_size], and its soft cap."""

    def __init__(self, weight: Tensor, logit_soft_cap: float | None) -> None:
        self._weight = weight
        self._soft_cap = logit_soft_cap
        self._label_rows: OrderedDict[bytes, Tensor] = OrderedDict()

    def label_logits(self, hidden: Tensor, labels: Int32 | None) -> Tensor:
        """Logits of the labels' rows, or of all rows for None: hidden [R, H] -> float32 [R, labels]."""
        weight = self._weight.float() if labels is None else self._rows_of(labels)
        return self._capped(hidden.float() @ weight.T)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of all rows of the head: hidden [R, H] -> float32 [R, rows], float64 for float64."""
        return self._capped(self._product(hidden))

    def log_normaliser(self, hidden: Tensor) -> Tensor:
        """log(sum(exp(logits))) over the whole vocabulary, in float32: hidden [R, H] -> [R]."""
        parts = [self._capped(self._product(rows)).logsumexp(dim=-1) for rows in hidden.split(ROW_SLICE)]
        return torch.cat(parts)

    def _product(self, hidden: Tensor) -> Tensor:
        """hidden @ weight^T, added up and kept in float32 whatever the operands are."""
        if hidden.dtype in (torch.float32, torch.float64):
            return hidden @ self._weight.T
        if hidden.is_cuda:
            return torch.mm(hidden, self._weight.T, out_dtype=torch.float32)
        slices = self._weight.split(8_192)
        return torch.cat([hidden.float() @ part.float().T for part in slices], dim=1)

    def _rows_of(self, labels: Int32) -> Tensor:
        key = labels.tobytes()
        if key in self._label_rows:
            self._label_rows.move_to_end(key)
        else:
            index = torch.from_numpy(labels.astype(np.int64))
            if self._weight.is_cuda:
                index = index.pin_memory().to(self._weight.device, non_blocking=True)
            rows = self._weight[index].float()
            if len(labels) > LABELS_TO_KEEP:
                return rows
            self._label_rows[key] = rows
            if len(self._label_rows) > LABEL_SETS:
                self._label_rows.popitem(last=False)
        return self._label_rows[key]

    def _capped(self, logits: Tensor) -> Tensor:
        return soft_cap(logits, self._soft_cap)
