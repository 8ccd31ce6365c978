"""The LM head's results for a batch: logits of labels, or their probabilities over the whole vocabulary."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.device.copies import OnDevice, Uploads
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.results.readout_plan import ReadoutPlan


@dataclass(frozen=True)
class HeadResult:
    members: list[int]
    """Indices of the requests whose items are its rows, in this order."""
    values: Tensor
    """float32 [rows, labels]: logits, or for a causal LM with neither `apply_softmax` nor `raw_logits`
    probabilities. Where items have labels of their own, float32 [labels of all rows]; where labels have several
    tokens, [tokens of all rows, columns], by row (`LMHead.token_logprobs`)."""


def head_results(
    head: LMHead, plans: Sequence[ReadoutPlan], places: Int64, uploads: Uploads, heads: LMHead | None = None
) -> Callable[[Tensor], list[HeadResult]]:
    """Prepare the head for the items of a batch, whose rows of the hidden states are `places`, int64 [R].

    `heads` are those of adapters, as one.

    Returns:
        A function of hidden, [R, hidden], the last tokens' final states; each request is a member of one result.
    """
    counts = np.array([plan.request.prompt.rows_read for plan in plans], np.int64)
    starts = counts.cumsum() - counts
    parts: list[_Part] = []
    for members, compute in _products(head, plans, uploads, heads or head):
        chosen = [*chain(*members)]
        rows = places[ragged_arange(starts[chosen], counts[chosen])]
        is_all = len(rows) == len(places) and bool((rows == np.arange(len(rows))).all())
        parts.append(_Part(members, None if is_all else uploads.add(rows), compute))
    return lambda hidden: [result for part in parts for result in part.results(hidden)]


def _products(
    head: LMHead, plans: Sequence[ReadoutPlan], uploads: Uploads, heads: LMHead
) -> Iterator[tuple[list[list[int]], Callable[[Tensor], Sequence[Tensor]]]]:
    """Prepare the products of the head: the members of each one's results, and the function of their rows.

    Requests with the same labels share a product; all probabilities over the vocabulary share one. Logits for
    items with labels of their own, and for a request of one item, are computed pair by pair, so that an item's are
    the same to the bit in a call of its own.
    """
    paired: dict[tuple[bool, bool], list[int]] = defaultdict(list)
    shared: dict[tuple[bool, bytes], list[int]] = defaultdict(list)
    by_token: dict[int | None, list[int]] = defaultdict(list)
    for index, plan in enumerate(plans):
        if plan.tokens is not None:
            by_token[plan.request.options.token_logprobs].append(index)
        elif plan.is_paired:
            paired[plan.from_logits, plan.request.by_heads].append(index)
        else:
            shared[plan.from_logits, plan.request.labels.tobytes()].append(index)
    for (from_logits, by_heads), members in paired.items():
        of = heads if by_heads else head
        yield [members], _alone(_pairs(of, [plans[index] for index in members], from_logits, uploads))
    for top, members in by_token.items():
        yield [members], _alone(_tokens(head, [plans[index] for index in members], top, uploads))
    for (from_logits, _), members in shared.items():
        if from_logits:
            first = plans[members[0]]
            labels = None if first.is_classifier else first.request.labels
            yield [members], _alone(head.label_logits(labels, uploads))
    probable = [members for (from_logits, _), members in shared.items() if not from_logits]
    if probable:
        groups = [
            (sum(plans[index].items for index in members), plans[members[0]].request.labels)
            for members in probable
        ]
        yield probable, head.probabilities(groups, uploads)


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
    head: LMHead, plans: Sequence[ReadoutPlan], from_logits: bool, uploads: Uploads
) -> Callable[[Tensor], Tensor]:
    own = np.concatenate([plan.label_counts for plan in plans])
    owners = np.arange(len(own)).repeat(own)
    labels = np.concatenate([plan.request.labels for plan in plans])
    pairs = head.pair_logits if from_logits else head.pair_probabilities
    return pairs(owners, labels, uploads)


def _tokens(
    head: LMHead, plans: Sequence[ReadoutPlan], top: int | None, uploads: Uploads
) -> Callable[[Tensor], Tensor]:
    tokens = [plan.tokens for plan in plans if plan.tokens is not None]
    firsts = np.cumsum([0, *(each.reads for each in tokens)])
    rows = [first + each.rows[each.order] for first, each in zip(firsts, tokens, strict=False)]
    ids = [each.ids[each.order] for each in tokens]
    return head.token_logprobs(np.concatenate(rows), np.concatenate(ids), top, uploads)


def _alone(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Sequence[Tensor]]:
    return lambda hidden: (compute(hidden),)


def ragged_arange(starts: Int64, counts: Int64) -> Int64:
    """Count from each start on, as often as its count says: int64 [sum of counts]."""
    ends = counts.cumsum()
    found: Int64 = (starts - ends + counts).repeat(counts)
    found += np.arange(len(found))
    return found
