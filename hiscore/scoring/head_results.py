"""What the LM head computes for a batch: logits of labels, or their probabilities over the whole vocabulary."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.device import upload
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.request import ScoreRequest


@dataclass(frozen=True)
class HeadResult:
    """One tensor for several requests."""

    members: list[int]
    """Indices of the requests whose items are its rows, in this order."""
    values: Tensor
    """float32 [rows, labels]: logits, or for a causal LM with neither `apply_softmax` nor `raw_logits`
    probabilities. Where items have labels of their own, float32 [labels of all rows]."""


def head_results(
    head: LMHead, hidden: Tensor, requests: Sequence[ScoreRequest], is_classifier: bool
) -> list[HeadResult]:
    """Apply the head to the items of a batch.

    Requests with the same labels share a matrix product; all probabilities over the vocabulary share one. Logits
    for items with labels of their own, and for a request of one item, are computed pair by pair, so that an item's
    are the same to the bit in a call of its own.

    Args:
        head: Of the checkpoint.
        hidden: [R, hidden]: for each item of the requests, in order, its last token's final state.
        requests: The batch.
        is_classifier: Whether the head is a classifier's.

    Returns:
        Each request is a member of one result.
    """
    ends = np.cumsum([len(request.prompt.item_lengths) for request in requests])
    starts = [0, *ends[:-1].tolist()]
    groups: dict[tuple[bool, bytes], list[int]] = defaultdict(list)
    paired: dict[bool, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        from_logits = is_classifier or request.options.apply_softmax or request.options.raw_logits
        if not is_classifier and has_own_labels(request):
            paired[from_logits].append(index)
            continue
        groups[from_logits, request.labels.tobytes()].append(index)

    def rows_of(members: list[int]) -> Tensor:
        if members == list(range(len(requests))):
            return hidden
        rows = np.concatenate([np.arange(starts[index], ends[index]) for index in members])
        return hidden[upload(rows, hidden.device)]

    results, probable = [], []
    for from_logits, members in paired.items():
        pairs = head.pair_logits if from_logits else head.pair_probabilities
        own = np.concatenate([own_counts(requests[index]) for index in members])
        owners = np.repeat(np.arange(len(own)), own)
        labels_of_all = np.concatenate([requests[index].labels for index in members])
        results.append(HeadResult(members, pairs(rows_of(members), owners, labels_of_all)))
    for (from_logits, _), members in groups.items():
        if not from_logits:
            probable.append(members)
            continue
        labels = None if is_classifier else requests[members[0]].labels
        results.append(HeadResult(members, head.label_logits(rows_of(members), labels)))
    if probable:
        everyone = [index for members in probable for index in members]
        counts = [sum(int(ends[index]) - starts[index] for index in members) for members in probable]
        labels_of = [requests[members[0]].labels for members in probable]
        found = head.probabilities(rows_of(everyone), list(zip(counts, labels_of, strict=True)))
        results += [HeadResult(members, values) for members, values in zip(probable, found, strict=True)]
    return results


def has_own_labels(request: ScoreRequest) -> bool:
    """Whether a request's results are computed pair by pair."""
    if request.label_counts is not None:
        return True
    from_logits = request.options.apply_softmax or request.options.raw_logits
    return from_logits and len(request.prompt.item_lengths) == 1


def own_counts(request: ScoreRequest) -> Int64:
    """How many labels each item has: int64 [items]."""
    if request.label_counts is not None:
        return request.label_counts
    return np.full(len(request.prompt.item_lengths), len(request.labels), np.int64)
