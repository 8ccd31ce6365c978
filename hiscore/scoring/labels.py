"""Labels of a text request, given as strings or as ids, to validated ids."""

from collections.abc import Sequence

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.validation import check_labels
from hiscore.settings import Limits


def check_label_inputs(
    labels: Sequence[str] | None, label_token_ids: Int32 | None, limits: Limits, facts: CheckpointFacts
) -> None:
    """Check, before anything is encoded, that labels are given as the model needs them.

    Args:
        labels: Texts, or None if not sent.
        label_token_ids: int32 [labels], or None if not sent.
        limits: Bounds the number of labels.
        facts: Whether the model is a classifier.

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
    if labels is not None and not facts.is_classifier:
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
) -> Int32:
    """The label ids of a request that `check_label_inputs` accepted.

    Args:
        labels: Texts, or None.
        encoded: Token ids of each text, encoded alone and without special tokens.
        label_token_ids: int32 [labels], or None.
        limits: As for `check_labels`.
        facts: As for `check_labels`.

    Returns:
        int32 [labels].

    Raises:
        RequestError: A label is not exactly one token, two are the same token, or `check_labels` refuses them.
    """
    if not labels:
        ids = np.empty(0, np.int32) if label_token_ids is None else label_token_ids
        return check_labels(ids, limits, facts)
    first: dict[int, str] = {}
    for label, ids_of_label in zip(labels, encoded, strict=True):
        if len(ids_of_label) != 1:
            raise RequestError(
                f"label {_short(label)} is {len(ids_of_label)} tokens: a label must be exactly one"
            )
        if ids_of_label[0] in first:
            raise RequestError(
                f"labels {_short(first[ids_of_label[0]])} and {_short(label)} are the same token"
            )
        first[ids_of_label[0]] = label
    return check_labels(np.fromiter(first, np.int32, len(first)), limits, facts)


def _short(label: str) -> str:
    return repr(label if len(label) <= 60 else label[:57] + "...")
