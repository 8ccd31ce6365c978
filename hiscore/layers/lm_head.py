"""LM head: from hidden states to logits.

Scoring multiplies only by the labels' rows of the head. A label's probability over the whole vocabulary needs all
logits, which are computed for a slice of rows at a time: the logits of all rows never exist at once.

What a batch asks of the head is known before its hidden states are. So each method takes the request, adds its
indices to the head's uploads, unless the device keeps them, and returns what computes the result.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hiscore.arrays import Int32, Int64
from hiscore.device.copies import Kept, OnDevice, Uploads
from hiscore.device.numerics import soft_cap
from hiscore.layers.pair_products import multiply_pairs
from hiscore.layers.products import linear
from hiscore.parallel.group import Group
from hiscore.parallel.shard import Shard

Place = tuple[OnDevice, OnDevice | None]
"""Rows of labels in this rank's head, and 1 for those that it has, else 0; None if it has all."""
ROW_SLICE = 256
"""Rows with logits at once: 148 MiB in float32 for a vocabulary of 151,936."""
ROWS_AT_ONCE = 2_048
"""Rows of the last layer and of a classifier's head that are computed at once."""
LEAST_ROWS = 128
"""Rows of a product on a GPU (`prefill.row_counts.MIN_ROWS`)."""
CACHED_LABEL_SETS = 256
"""Sets of labels whose rows are cached: callers ask for the same few again and again."""
MAX_CACHED_LABELS = 64
"""Labels in one cached set."""
FEW_LABELS = 16
"""Up to so many labels a GPU multiplies pair by pair: beyond, a matrix product reads less."""
WIDENED_AT_ONCE = 2**20
"""Numbers of a head in bfloat16 that a CPU has in float32 at once: 4 MiB."""


class LMHead:
    """The head of a causal LM or a classifier.

    Example:
        >>> head = LMHead(torch.eye(3), logit_soft_cap=None)
        >>> hidden = torch.tensor([[0.5, 1.0, 2.0]])
        >>> head.label_logits(np.array([2, 0], np.int32), Uploads(torch.device("cpu")))(hidden)
        tensor([[2.0000, 0.5000]])
    """

    def __init__(
        self,
        weight: Tensor,
        logit_soft_cap: float | None,
        bias: Tensor | None = None,
        group: Group | None = None,
        vocabulary: int | None = None,
        first: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Wrap the weights.

        Args:
            weight: [vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier; of several ranks, each
                has its share of the vocabulary.
            bias: float32 [labels], of a classifier that has one.
            vocabulary: Tokens of all ranks; None: as many as there are rows.
            first: Of a classifier, what is before its last product, [R, hidden] to [R, inner]; None: nothing.
        """
        self._first_layer = first
        self._weight, self._bias = weight, bias
        self._group = group or Group()
        self._vocabulary = len(weight) if vocabulary is None else vocabulary
        self._first = self._group.shard.span(self._vocabulary).start
        self._soft_cap = logit_soft_cap
        self._label_rows: OrderedDict[bytes, Tensor] = OrderedDict()
        self._kept = Kept()

    def label_logits(self, labels: Int32 | None, uploads: Uploads) -> Callable[[Tensor], Tensor]:
        """Return a function of hidden, [R, hidden], to logits of some labels (None: all), float32 [R, labels]."""
        if labels is not None and len(labels) <= FEW_LABELS and self._weight.is_cuda:
            from hiscore.kernels.pair_products import multiply_by_each

            column, held = self._place(labels, uploads)

            def of_few(hidden: Tensor) -> Tensor:
                logits = multiply_by_each(hidden, self._weight, column())
                return self._capped(self._group.sum(_where(held, logits)))

            return of_few
        rows = self._weight.float if labels is None else self._rows_of(labels, uploads)

        def compute(hidden: Tensor) -> Tensor:
            if (parts := -(-len(hidden) // ROWS_AT_ONCE)) > 1:
                return torch.cat([compute(part) for part in hidden.tensor_split(parts)])
            if self._first_layer is not None:
                # A GPU has kernels of other bits for few rows.
                padded = pad(hidden, (0, 0, 0, max(0, LEAST_ROWS - len(hidden)) if hidden.is_cuda else 0))
                hidden = self._first_layer(padded)[: len(hidden)]
            # Of a label, one rank has the row, and the others a row of zeros.
            logits = self._capped(self._group.sum(hidden.float() @ rows().T))
            return logits if self._bias is None else logits + self._bias

        return compute

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

    def probabilities(
        self, groups: Sequence[tuple[int, Int32]], uploads: Uploads
    ) -> Callable[[Tensor], list[Tensor]]:
        """Return a function of hidden, [R, hidden], to each group's probabilities, float32 [rows, labels].

        A group is a count of rows and their labels, int32 [labels]. Probabilities are over the whole vocabulary.
        Labels and normaliser come from the same logits, less the same maximum: two products that round differently
        would give probabilities above 1.
        """
        ends = np.cumsum([rows for rows, _ in groups]).tolist()
        columns = [self._place(labels, uploads) for _, labels in groups]

        def compute(hidden: Tensor) -> list[Tensor]:
            found: list[list[Tensor]] = [[] for _ in groups]
            for start, powers, totals in self._powers(hidden):
                for group, (rows, _) in enumerate(groups):
                    inside = slice(max(ends[group] - rows - start, 0), max(ends[group] - start, 0))
                    column, held = columns[group]
                    of_labels = powers[inside].index_select(1, column())
                    found[group].append(self._group.sum(_where(held, of_labels)) / totals[inside])
            return [torch.cat(parts).float() for parts in found]

        return compute

    def pair_logits(self, rows: Int64, labels: Int32, uploads: Uploads) -> Callable[[Tensor], Tensor]:
        """Return a function of hidden, [R, hidden], to logits of n pairs of a row and a label, float32 [n].

        Each logit is the same to the bit whatever the other pairs are: see `pair_products`.
        """
        row, (label, held) = self._kept.add(rows, uploads), self._place(labels, uploads)

        def compute(hidden: Tensor) -> Tensor:
            logits = multiply_pairs(hidden, self._weight, row(), label())
            return self._capped(self._group.sum(_where(held, logits)))

        return compute

    def pair_probabilities(self, rows: Int64, labels: Int32, uploads: Uploads) -> Callable[[Tensor], Tensor]:
        """Return `pair_logits` as probabilities over the whole vocabulary; rows ascend."""
        last = int(rows[-1]) + 1 if len(rows) else 0
        edges = np.searchsorted(rows, np.arange(0, max(last, 1) + ROW_SLICE, ROW_SLICE))
        places = [
            (self._kept.add(rows[first:end] % ROW_SLICE, uploads), self._place(labels[first:end], uploads))
            for first, end in pairwise(edges)
        ]

        def compute(hidden: Tensor) -> Tensor:
            parts = [hidden.new_empty(0, dtype=torch.float32)]
            for (row, (label, held)), (_, powers, totals) in zip(places, self._powers(hidden), strict=True):
                of_labels = _where(held, powers[row(), label()])
                parts.append((self._group.sum(of_labels) / totals.index_select(0, row())[:, 0]).float())
            return torch.cat(parts)

        return compute

    def token_logprobs(
        self, rows: Int64, tokens: Int32, top: int | None, uploads: Uploads
    ) -> Callable[[Tensor], Tensor]:
        """Return a function of hidden, [R, hidden], to what n pairs of a row and a token have; rows ascend.

        The result is float32 [n, 1]: the logarithm of each token's probability over the whole vocabulary. Unless
        `top` is None, it is [n, 2 + 2 * top]: also the token's rank, from 1, and the likeliest tokens, first their
        logarithms and then their ids.
        """
        edges = np.searchsorted(rows, np.arange(0, (int(rows[-1]) if len(rows) else 0) + 1, ROW_SLICE))
        places = [
            (self._kept.add(rows[first:end] % ROW_SLICE, uploads), self._place(tokens[first:end], uploads))
            for first, end in pairwise([*edges, len(rows)])
        ]

        def compute(hidden: Tensor) -> Tensor:
            parts = [hidden.new_empty((0, 1 if top is None else 2 + 2 * top), dtype=torch.float32)]
            for (row, (token, held)), rows_at_once in zip(places, hidden.split(ROW_SLICE), strict=False):
                logits = self._capped(self._product(rows_at_once))
                logits.sub_(self._group.max(logits.amax(dim=1, keepdim=True)))
                of_row = row()
                logs = self._group.sum(logits.exp().sum(dim=1)).log_()
                own = self._group.sum(_where(held, logits[of_row, token()]))
                columns = [(own - logs[of_row])[:, None]]
                if top is not None:
                    columns += self._among_all(logits, logs, own, of_row, top)
                parts.append(torch.cat([each.float() for each in columns], dim=1))
            return torch.cat(parts)

        return compute

    def _among_all(self, logits: Tensor, logs: Tensor, own: Tensor, row: Tensor, top: int) -> list[Tensor]:
        """Columns of `token_logprobs`: ranks, and the likeliest tokens of all ranks' shares."""
        # A CPU copies truth values to the type of their sum, unless they take the place of the logits' own copy.
        greater = Tensor.gt if logits.is_cuda else Tensor.gt_
        # A slice may hold a row for several tokens, and then the comparison is as large as that.
        parts = zip(row.split(ROW_SLICE), own.split(ROW_SLICE), strict=True)
        counts = [greater(logits[some], each[:, None]).sum(1, dtype=torch.float32) for some, each in parts]
        values, ids = logits.topk(min(top, logits.shape[1]), dim=1)
        if self._group.shard.ranks > 1:
            values, place = self._group.gather(values).topk(top, dim=1)
            ids = self._group.gather((ids + self._first).float()).gather(1, place)
        likeliest = [values - logs[:, None], ids.float()]
        return [self._group.sum(torch.cat(counts))[:, None] + 1, *(each[row] for each in likeliest)]

    def _powers(self, hidden: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield slices: first row, exp(logits - maximum) [rows, vocabulary], and sums of all ranks [rows, 1]."""
        start = 0
        for rows_at_once in hidden.split(ROW_SLICE):
            logits = self._capped(self._product(rows_at_once))
            powers = logits.sub_(self._group.max(logits.amax(dim=1, keepdim=True))).exp_()
            yield start, powers, self._group.sum(powers.sum(dim=1, keepdim=True))
            start += len(rows_at_once)

    def _product(self, hidden: Tensor) -> Tensor:
        if hidden.dtype in (torch.float32, torch.float64):
            return linear(hidden, self._weight)
        if hidden.is_cuda:
            return torch.mm(hidden, self._weight.T, out_dtype=torch.float32)
        # A slice is widened and multiplied while it is in the processor's cache.
        slices = self._weight.split(max(1, WIDENED_AT_ONCE // self._weight.shape[1]))
        return torch.cat([linear(hidden.float(), part.float()) for part in slices], dim=1)

    def _rows_of(self, labels: Int32, uploads: Uploads) -> Callable[[], Tensor]:
        """Getter of float32 [labels, hidden], once the batch's uploads are on the device."""
        key = labels.tobytes()
        if (cached := self._label_rows.get(key)) is not None:
            self._label_rows.move_to_end(key)
            return lambda: cached
        place = self._place(labels, uploads)
        if len(labels) > MAX_CACHED_LABELS:
            return lambda: self._weight_rows(place)

        def fetch() -> Tensor:
            rows = self._label_rows[key] = self._weight_rows(place)
            if len(self._label_rows) > CACHED_LABEL_SETS:
                self._label_rows.popitem(last=False)
            return rows

        return fetch

    def _weight_rows(self, place: Place) -> Tensor:
        """float32 [labels, hidden]; zeros for those that another rank has."""
        at, held = place
        rows = self._weight.index_select(0, at()).float()
        return rows if held is None else rows * held()[:, None]

    def _place(self, labels: Int32, uploads: Uploads) -> Place:
        """Rows of labels in this rank's head: int32 [labels]."""
        places = labels.astype(np.int64)
        if self._group.shard.ranks == 1:
            return self._kept.add(places, uploads), None
        places -= self._first
        held = (places >= 0) & (places < len(self._weight))
        own = self._kept.add(np.where(held, places, 0), uploads)
        return own, self._kept.add(held.astype(np.int32), uploads)

    def _capped(self, logits: Tensor) -> Tensor:
        return soft_cap(logits, self._soft_cap)


def _where(held: OnDevice | None, of_labels: Tensor) -> Tensor:
    """[..., labels], with zeros where another rank has the label."""
    return of_labels if held is None else of_labels * held()
