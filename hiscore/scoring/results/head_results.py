"""The LM head's results for a batch: logits of labels, or their probabilities over the whole vocabulary."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.device.copies import OnDevice, Uploads
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.requests.request import ScoreRequest


@dataclass(frozen=True)
class HeadResult:
    """One tensor for several requests."""

    members: list[int]
    """Indices of the requests whose items are its rows, in this order."""
    values: Tensor
    """float32 [rows, labels]: logits, or for a causal LM with neither `apply_softmax` nor `raw_logits`
    probabilities. Where items have labels of their own, float32 [labels of all rows]."""


def head_results(
    head: LMHead,
    requests: Sequence[ScoreRequest],
    is_classifier: bool,
    places: Int64,
    uploads: Uploads,
) -> Callable[[Tensor], list[HeadResult]]:
    """Prepare the head for the items of a batch, whose rows of the hidden states are `places`, int64 [R].

    Requests with the same labels share a matrix product; all probabilities over the vocabulary share one. Logits
    for items with labels of their own, and for a request of one item, are computed pair by pair, so that an
    item's
    are the same to the bit in a call of its own.

    Returns:
        A function of hidden, [R, hidden], the last tokens' final states; each request is a member of one result.
    """
    counts = np.array([len(request.prompt.item_lengths) for request in requests], np.int64)
    ends = counts.cumsum()
    groups: dict[tuple[bool, bytes], list[int]] = defaultdict(list)
    paired: dict[bool, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        from_logits = is_classifier or request.options.apply_softmax or request.options.raw_logits
        if not is_classifier and has_own_labels(request):
            paired[from_logits].append(index)
            continue
        groups[from_logits, request.labels.tobytes()].append(index)
    parts: list[_Part] = []

    def add(members: list[list[int]], compute: Callable[[Tensor], Sequence[Tensor]]) -> None:
        chosen = [index for each in members for index in each]
        rows = places[ragged_arange(ends[chosen] - counts[chosen], counts[chosen])]
        is_all = len(rows) == len(places) and bool((rows == np.arange(len(rows))).all())
        parts.append(_Part(members, None if is_all else uploads.add(rows), compute))

    for from_logits, members in paired.items():
        chosen = [requests[index] for index in members]
        add([members], _alone(_pairs(head, chosen, from_logits, uploads)))
    for (from_logits, _), members in groups.items():
        if from_logits:
            labels = None if is_classifier else requests[members[0]].labels
            add([members], _alone(head.label_logits(labels, uploads)))
    probable = [members for (from_logits, _), members in groups.items() if not from_logits]
    if probable:
        of_groups = [(int(counts[members].sum()), requests[members[0]].labels) for members in probable]
        add(probable, head.probabilities(of_groups, uploads))
    return lambda hidden: [result for part in parts for result in part.results(hidden)]


@dataclass(frozen=True)
class _Part:
    """Results that are computed together, of some rows of the hidden states; None: all of them, in order."""

    members: list[list[int]]
    rows: OnDevice | None
    compute: Callable[[Tensor], Sequence[Tensor]]

    def results(self, hidden: Tensor) -> list[HeadResult]:
        own = hidden if self.rows is None else hidden.index_select(0, self.rows())
        return [HeadResult(*each) for each in zip(self.members, self.compute(own), strict=True)]


def _pairs(
    head: LMHead, requests: Sequence[ScoreRequest], from_logits: bool, uploads: Uploads
) -> Callable[[Tensor], Tensor]:
    """Prepare the logits, or probabilities over the vocabulary, of items' own labels."""
    own = np.concatenate([own_counts(request) for request in requests])
    owners = np.arange(len(own)).repeat(own)
    labels = np.concatenate([request.labels for request in requests])
    pairs = head.pair_logits if from_logits else head.pair_probabilities
    return pairs(owners, labels, uploads)


def _alone(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Sequence[Tensor]]:
    return lambda hidden: (compute(hidden),)


def has_own_labels(request: ScoreRequest) -> bool:
    """Tell whether a request's results are computed pair by pair."""
    if request.label_counts is not None:
        return True
    from_logits = request.options.apply_softmax or request.options.raw_logits
    return from_logits and len(request.prompt.item_lengths) == 1


def own_counts(request: ScoreRequest) -> Int64:
    """Count the labels of each item: int64 [items]."""
    if request.label_counts is not None:
        return request.label_counts
    return np.full(len(request.prompt.item_lengths), len(request.labels), np.int64)


def ragged_arange(starts: Int64, counts: Int64) -> Int64:
    """Count from each start on, as often as its count says: int64 [sum of counts]."""
    ends = counts.cumsum()
    found: Int64 = (starts - ends + counts).repeat(counts)
    found += np.arange(len(found))
    return found
