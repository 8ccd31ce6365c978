"""LM head: from hidden states to logits.

Scoring multiplies only by the labels' rows of the head. A label's probability over the whole vocabulary needs all
logits, which are computed for a slice of rows at a time: the logits of all rows never exist at once.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hiscore.arrays import Int32, Int64
from hiscore.device import upload
from hiscore.layers.products import linear
from hiscore.numerics import soft_cap
from hiscore.parallel.group import Alone, Group
from hiscore.parallel.shard import Shard

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

    def __init__(
        self,
        weight: Tensor,
        logit_soft_cap: float | None,
        bias: Tensor | None = None,
        group: Group | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Wrap the weights.

        Args:
            weight: [vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier; of several ranks, each
                has its share of the vocabulary.
            logit_soft_cap: See `numerics.soft_cap`.
            bias: float32 [labels], of a classifier that has one.
            group: The ranks; None: there are no others.
            vocabulary: Tokens of all ranks; None: as many as there are rows.
        """
        self._weight, self._bias = weight, bias
        self._group = group or Alone()
        self._vocabulary = len(weight) if vocabulary is None else vocabulary
        self._first = self._group.shard.span(self._vocabulary).start
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
        # Of a label, one rank has the row, and the others a row of zeros.
        logits = self._capped(self._group.sum(hidden.float() @ weight.T))
        return logits if self._bias is None else logits + self._bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary: [R, hidden] to [R, vocabulary], float32 (float64 for float64)."""
        own = self._product(hidden)
        if self._group.shard.ranks == 1:
            return self._capped(own)
        # Shares differ by one token at most, and what ranks exchange is of one shape.
        widest = -(-self._vocabulary // self._group.shard.ranks)
        parts = self._group.gather(pad(own, (0, widest - own.shape[1]))).split(widest, dim=1)
        sizes = [Shard(rank, len(parts)).count(self._vocabulary) for rank in range(len(parts))]
        return self._capped(torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], 1))

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
        columns = [self._own(labels) for _, labels in groups]
        for start, powers, totals in self._powers(hidden):
            for group, (rows, _) in enumerate(groups):
                inside = slice(max(ends[group] - rows - start, 0), max(ends[group] - start, 0))
                column, held = columns[group]
                of_labels = powers[inside][:, column]
                found[group].append(self._group.sum(_where(held, of_labels)) / totals[inside])
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
            products *= self._weight_rows(labels[chosen])
            while (width := products.shape[1]) > 1:
                half = (width + 1) // 2
                products[:, : width - half] += products[:, half:]
                products = products[:, :half]
            parts.append(products[:, 0])
        return self._capped(self._group.sum(torch.cat(parts)))

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
            label, held = self._own(labels[first:last])
            parts.append((self._group.sum(_where(held, powers[row, label])) / totals[row, 0]).float())
        return torch.cat(parts)

    def _powers(self, hidden: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of each slice of rows: the first, exp(logits - maximum) [rows, vocabulary], and its sums [rows, 1].

        Of several ranks, each has its own part of the vocabulary, and the maximum and the sums of all.
        """
        start = 0
        for rows_at_once in hidden.split(ROW_SLICE):
            logits = self._capped(self._product(rows_at_once))
            powers = logits.sub_(self._group.max(logits.amax(dim=1, keepdim=True))).exp_()
            yield start, powers, self._group.sum(powers.sum(dim=1, keepdim=True))
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
            rows = self._weight_rows(labels)
            if len(labels) > MAX_CACHED_LABELS:
                return rows
            self._label_rows[key] = rows
            if len(self._label_rows) > CACHED_LABEL_SETS:
                self._label_rows.popitem(last=False)
        return self._label_rows[key]

    def _weight_rows(self, labels: Int32) -> Tensor:
        """float32 [labels, hidden]; zeros for those that another rank has."""
        place, held = self._own(labels)
        rows = self._weight[place].float()
        return rows if held is None else rows * held[:, None]

    def _own(self, labels: Int32) -> tuple[Tensor, Tensor | None]:
        """int64 [labels]: their rows here; and bool [labels]: whether this rank has them, None if it has all."""
        places = labels.astype(np.int64)
        device = self._weight.device
        if self._group.shard.ranks == 1:
            return upload(places, device), None
        places -= self._first
        held = (places >= 0) & (places < len(self._weight))
        return upload(np.where(held, places, 0), device), upload(held, device)

    def _capped(self, logits: Tensor) -> Tensor:
        return soft_cap(logits, self._soft_cap)


def _where(held: Tensor | None, of_labels: Tensor) -> Tensor:
    """[..., labels], with zeros where another rank has the label."""
    return of_labels if held is None else of_labels * held
