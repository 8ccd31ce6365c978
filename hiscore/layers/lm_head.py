"""LM head: from hidden states to logits.

Scoring multiplies only by the labels' rows of the head. A label's probability over the whole vocabulary needs all
logits, which are computed for a slice of rows at a time: the logits of all rows never exist at once.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.device import upload
from hiscore.layers.products import linear
from hiscore.numerics import soft_cap

ROW_SLICE = 256
"""Rows with logits at once: 148 MiB in float32 for a vocabulary of 151,936."""
CACHED_LABEL_SETS = 256
"""Sets of labels whose rows are cached: callers ask for the same few again and again."""
MAX_CACHED_LABELS = 64
"""In one cached set."""
PRODUCTS_AT_ONCE = 2**24
"""Products of numbers in memory at once where each row has labels of its own: 64 MiB in float32."""


class LMHead:
    """The head of a causal LM or a classifier."""

    def __init__(self, weight: Tensor, logit_soft_cap: float | None, bias: Tensor | None = None) -> None:
        """Wrap the weights.

        Args:
            weight: [vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier.
            logit_soft_cap: See `numerics.soft_cap`.
            bias: float32 [labels], of a classifier that has one.
        """
        self._weight, self._bias = weight, bias
        self._soft_cap = logit_soft_cap
        self._label_rows: OrderedDict[bytes, Tensor] = OrderedDict()

    def label_logits(self, hidden: Tensor, labels: Int32 | None) -> Tensor:
        """Logits of some labels.

        Args:
            hidden: [R, hidden].
            labels: int32 [labels], token ids; None: all rows of the head.

        Returns:
            float32 [R, labels].
        """
        weight = self._weight.float() if labels is None else self._rows_of(labels)
        logits = self._capped(hidden.float() @ weight.T)
        return logits if self._bias is None else logits + self._bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary: [R, hidden] to [R, vocabulary], float32 (float64 for float64)."""
        return self._capped(self._product(hidden))

    def probabilities(self, hidden: Tensor, groups: Sequence[tuple[int, Int32]]) -> list[Tensor]:
        """Probabilities of some labels over the whole vocabulary.

        Labels and normaliser come from the same logits, less the same maximum: two products that round differently
        would give probabilities above 1.

        Args:
            hidden: [R, hidden].
            groups: How many rows have the same labels, and int32 [labels] those; in order, of R rows together.

        Returns:
            For each group float32 [rows, labels].
        """
        found: list[list[Tensor]] = [[] for _ in groups]
        ends = np.cumsum([rows for rows, _ in groups])
        columns = [upload(labels.astype(np.int64), hidden.device) for _, labels in groups]
        for start, powers, totals in self._powers(hidden):
            for group, (rows, _) in enumerate(groups):
                inside = slice(max(ends[group] - rows - start, 0), max(ends[group] - start, 0))
                found[group].append(powers[inside][:, columns[group]] / totals[inside])
        return [torch.cat(parts).float() for parts in found]

    def pair_logits(self, hidden: Tensor, rows: Int64, labels: Int32) -> Tensor:
        """Logits of pairs of a row and a label.

        Each is summed in an order that depends on nothing but the size of a row, so it is the same to the bit
        whatever the other pairs are. A matrix product promises no such thing: libraries choose by its shape.

        Args:
            hidden: [R, hidden].
            rows: int64 [n].
            labels: int32 [n].

        Returns:
            float32 [n].
        """
        at_once = max(PRODUCTS_AT_ONCE // hidden.shape[1], 1)
        parts = [hidden.new_empty(0, dtype=torch.float32)]
        for start in range(0, len(rows), at_once):
            chosen = slice(start, start + at_once)
            products = hidden[upload(rows[chosen], hidden.device)].float()
            products *= self._weight[upload(labels[chosen].astype(np.int64), hidden.device)].float()
            while (width := products.shape[1]) > 1:
                half = (width + 1) // 2
                products[:, : width - half] += products[:, half:]
                products = products[:, :half]
            parts.append(products[:, 0])
        return self._capped(torch.cat(parts))

    def pair_probabilities(self, hidden: Tensor, rows: Int64, labels: Int32) -> Tensor:
        """Probabilities of pairs of a row and a label, over the whole vocabulary: see `probabilities`.

        Args:
            hidden: [R, hidden].
            rows: int64 [n], ascending.
            labels: int32 [n].

        Returns:
            float32 [n].
        """
        parts = [hidden.new_empty(0, dtype=torch.float32)]
        for start, powers, totals in self._powers(hidden):
            first, last = np.searchsorted(rows, (start, start + len(powers)))
            row = upload(rows[first:last] - start, hidden.device)
            label = upload(labels[first:last].astype(np.int64), hidden.device)
            parts.append((powers[row, label] / totals[row, 0]).float())
        return torch.cat(parts)

    def _powers(self, hidden: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of each slice of rows: the first, exp(logits - maximum) [rows, vocabulary], and its sums [rows, 1]."""
        start = 0
        for rows_at_once in hidden.split(ROW_SLICE):
            logits = self.logits(rows_at_once)
            powers = logits.sub_(logits.amax(dim=1, keepdim=True)).exp_()
            yield start, powers, powers.sum(dim=1, keepdim=True)
            start += len(rows_at_once)

    def _product(self, hidden: Tensor) -> Tensor:
        """hidden weight^T, with sums and result in float32 at least."""
        if hidden.dtype in (torch.float32, torch.float64):
            return linear(hidden, self._weight)
        if hidden.is_cuda:
            return torch.mm(hidden, self._weight.T, out_dtype=torch.float32)
        slices = self._weight.split(8_192)
        return torch.cat([linear(hidden.float(), part.float()) for part in slices], dim=1)

    def _rows_of(self, labels: Int32) -> Tensor:
        key = labels.tobytes()
        if key in self._label_rows:
            self._label_rows.move_to_end(key)
        else:
            rows = self._weight[upload(labels.astype(np.int64), self._weight.device)].float()
            if len(labels) > MAX_CACHED_LABELS:
                return rows
            self._label_rows[key] = rows
            if len(self._label_rows) > CACHED_LABEL_SETS:
                self._label_rows.popitem(last=False)
        return self._label_rows[key]

    def _capped(self, logits: Tensor) -> Tensor:
        return soft_cap(logits, self._soft_cap)
