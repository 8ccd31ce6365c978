"""The way from a request's hidden states to its scores, chosen once for each request."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Float32, Int64
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.label_tokens import LabelTokens
from hiscore.scoring.results.readout import PairScores, scores_from_head

ScoreReader = Callable[[Float32], Float32]


class ReadoutPlan(NamedTuple):
    """The numbers that a request takes from the head, and their way to scores.

    Attributes:
        request: Validated, but for labels that an item has twice among its own.
        is_classifier: The labels are all rows of a classifier's head.
        from_logits: The head gives logits; else probabilities over the vocabulary.
        is_paired: The head computes pairs of an item and a label of its own; else every item has the same columns.
        tokens: The tokens of labels, where the head gives the logarithms of their probabilities.
    """

    request: ScoreRequest
    is_classifier: bool
    from_logits: bool
    is_paired: bool
    tokens: LabelTokens | None = None

    @classmethod
    def of(cls, request: ScoreRequest, is_classifier: bool) -> "ReadoutPlan":
        """Choose for a request to a causal LM, or to a classifier."""
        options = request.options
        if request.prompt.tries is not None:
            return cls(request, is_classifier, False, False, tokens=LabelTokens.of(request.prompt.tries))
        if request.by_heads:
            return cls(request, False, True, True)
        from_logits = is_classifier or options.apply_softmax or options.raw_logits
        # The logits of one item have the bits that they have beside others with labels of their own.
        is_single = from_logits and len(request.prompt.item_lengths) == 1
        is_paired = not is_classifier and (request.label_counts is not None or is_single)
        return cls(request, is_classifier, from_logits, is_paired)

    @property
    def items(self) -> int:
        return len(self.request.prompt.item_lengths)

    @property
    def results(self) -> int:
        """Rows of numbers that the head gives, where it gives the same columns for each."""
        return self.request.prompt.rows_read if self.tokens is None else len(self.tokens.ids)

    @property
    def label_counts(self) -> Int64:
        """int64 [items]: labels of each item."""
        if self.request.label_counts is not None:
            return self.request.label_counts
        return np.full(self.items, len(self.request.labels), np.int64)

    def reader(self) -> ScoreReader:
        """Prepare the function from the request's results to its scores, float32 [items and places, labels]."""
        request = self.request
        if self.tokens is not None:
            of_labels = PairScores(self.label_counts, request.columns, request.options)
            return partial(self.tokens.scores, of_labels=of_labels)
        if not self.is_paired:
            return partial(scores_from_head, options=request.options, is_classifier=self.is_classifier)
        columns = len(request.labels)
        if request.label_counts is not None:
            check_repeated(request.labels, request.label_counts, request.first_item)
            columns = request.columns
        return PairScores(self.label_counts, columns, request.options, request.by_heads).of
