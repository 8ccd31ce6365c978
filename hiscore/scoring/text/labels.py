"""Labels of a text request, given as strings or as ids, to validated ids."""

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.validation import check_counts, check_labels
from hiscore.settings import Limits


def check_label_inputs(
    labels: Sequence[str] | None,
    label_token_ids: Int32 | None,
    limits: Limits,
    facts: CheckpointFacts,
    counts: Sequence[int] | None = None,
    items: int = 0,
) -> None:
    """Check, before anything is encoded, that labels are given as the model needs them.

    Raises:
        RequestError: None or both of the two for a causal LM, any for a classifier, or too many labels.
    """
    given = [
        name
        for name, values in (("labels", labels), ("label_token_ids", label_token_ids))
        if values is not None and not (facts.is_classifier and len(values) == 0)
    ]
    if facts.is_classifier and given:
        raise RequestError(f"'{given[0]}' must not be given: this model is a classifier with its own labels")
    if not facts.is_classifier and len(given) != 1:
        raise RequestError(
            "exactly one of 'labels' and 'label_token_ids' is needed: "
            + ("both were given" if given else "neither was given")
        )
    given_labels = labels if labels is not None else label_token_ids
    check_counts(counts, items, 0 if given_labels is None else len(given_labels), limits, facts)
    if labels is not None and not facts.is_classifier and counts is None:
        if not labels:
            raise RequestError("'labels' is empty: this model needs at least one label")
        if len(labels) > limits.max_labels:
            raise RequestError(
                f"'labels' holds {len(labels)} labels: at most {limits.max_labels} in one call"
            )


def resolve_labels(
    labels: Sequence[str] | None,
    encoded: Sequence[Sequence[int]],
    label_token_ids: Int32 | None,
    limits: Limits,
    facts: CheckpointFacts,
    counts: Sequence[int] | None = None,
    items: int = 0,
) -> Int32:
    """Return the label ids, int32 [labels], of a request that `check_label_inputs` accepted.

    Each text is encoded alone and without special tokens.

    Raises:
        RequestError: A label is not exactly one token, two are the same token, or `check_labels` refuses them.
    """
    if not labels:
        ids = np.empty(0, np.int32) if label_token_ids is None else label_token_ids
        return check_labels(ids, limits, facts, counts, items)
    for label, ids_of_label in zip(labels, encoded, strict=True):
        if len(ids_of_label) != 1:
            raise RequestError(
                f"label {_short(label)} is {len(ids_of_label)} tokens: a label must be exactly one"
            )
    # An item's own labels must differ, two items' may be the same.
    owners = repeat(0) if counts is None else chain.from_iterable(map(repeat, range(items), counts))
    first: dict[tuple[int, int], str] = {}
    for label, (token,), owner in zip(labels, encoded, owners, strict=False):
        if (owner, token) in first:
            other = first[owner, token]
            raise RequestError(f"labels {_short(other)} and {_short(label)} are the same token")
        first[owner, token] = label
    found = np.fromiter((token for (token,) in encoded), np.int32, len(labels))
    return check_labels(found, limits, facts, counts, items)


def _short(label: str) -> str:
    return repr(label if len(label) <= 60 else label[:57] + "...")
