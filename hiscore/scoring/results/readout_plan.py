"""The way from a request's hidden states to its scores, chosen once for each request."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Float32, Int64
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.readout import PairScores, scores_from_head

ScoreReader = Callable[[Float32], Float32]


class ReadoutPlan(NamedTuple):
    """The numbers that a request takes from the head, and their way to scores.

    Attributes:
        request: Validated, but for labels that an item has twice among its own.
        is_classifier: The labels are all rows of a classifier's head.
        from_logits: The head gives logits; else probabilities over the vocabulary.
        is_paired: The head computes pairs of an item and a label of its own; else every item has the same columns.
    """

    request: ScoreRequest
    is_classifier: bool
    from_logits: bool
    is_paired: bool

    @classmethod
    def of(cls, request: ScoreRequest, is_classifier: bool) -> "ReadoutPlan":
        """Choose for a request to a causal LM, or to a classifier."""
        options = request.options
        from_logits = is_classifier or options.apply_softmax or options.raw_logits
        # The logits of one item have the bits that they have beside others with labels of their own.
        is_single = from_logits and len(request.prompt.item_lengths) == 1
        is_paired = not is_classifier and (request.label_counts is not None or is_single)
        return cls(request, is_classifier, from_logits, is_paired)

    @property
    def items(self) -> int:
        """The number of rows that are read."""
        return len(self.request.prompt.item_lengths)

    @property
    def label_counts(self) -> Int64:
        """int64 [items]: labels of each item."""
        if self.request.label_counts is not None:
            return self.request.label_counts
        return np.full(self.items, len(self.request.labels), np.int64)

    def reader(self) -> ScoreReader:
        """Prepare the function from the request's results to its scores, float32 [items, labels].

        Raises:
            RequestError: An item has a label twice among its own; from the function, a number is not finite.
        """
        request = self.request
        if not self.is_paired:
            return partial(scores_from_head, options=request.options, is_classifier=self.is_classifier)
        columns = len(request.labels)
        if request.label_counts is not None:
            check_repeated(request.labels, request.label_counts, request.first_item)
            columns = request.columns
        return PairScores(self.label_counts, columns, request.options).of
