"""Labels of a text request, given as strings or as ids, to validated ids."""

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.validation import check_counts, check_labels
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.scoring.text.label_contexts import short
from hiscore.settings import Limits


def check_label_inputs(request: TextRequest, limits: Limits, facts: CheckpointFacts) -> None:
    """Check, before anything is encoded, that labels are given as the model needs them."""
    labels, label_token_ids, lengths = request.labels, request.label_token_ids, request.label_lengths
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
    if lengths is not None and labels is not None:
        raise RequestError("parameter 'label_lengths' cuts 'label_token_ids': it does not go with 'labels'")
    number = len(next((each for each in (labels, lengths, label_token_ids) if each is not None), ()))
    name = "labels" if labels is not None else "label_token_ids"
    check_counts(name, number, request.label_counts, len(request.items), limits, facts)


def resolve_labels(
    request: TextRequest, behind: Sequence[Sequence[int]], limits: Limits, facts: CheckpointFacts
) -> tuple[Int32, Int32]:
    """Return the ids of all labels, int32 [tokens], of a request that `check_label_inputs` accepted.

    Args:
        behind: The tokens of each text (`encode_behind`).

    Returns:
        Also how many tokens each label has, int32 [1, labels], and under `by_bytes` in a second row how many bytes
        of UTF-8; nothing, [0, 0], if each is one token, or was given as ids.
    """
    labels, counts, items = request.labels, request.label_counts, len(request.items)
    nothing = np.empty((0, 0), np.int32)
    if not labels:
        ids = np.empty(0, np.int32) if request.label_token_ids is None else request.label_token_ids
        lengths = request.label_lengths
        return check_labels(ids, limits, facts, counts, items, lengths), nothing
    # An item's own labels must differ, two items' may be the same.
    owners = repeat(0) if counts is None else chain.from_iterable(map(repeat, range(items), counts))
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for label, ids_of_label, owner in zip(labels, behind, owners, strict=False):
        key = owner, tuple(ids_of_label)
        if key in first:
            tokens = "token" if len(ids_of_label) == 1 else "tokens"
            raise RequestError(f"labels {short(first[key])} and {short(label)} are the same {tokens}")
        first[key] = label
    sizes = [*map(len, behind)]
    is_single = set(sizes) == {1}
    found = np.fromiter(chain.from_iterable(behind), np.int32, sum(sizes))
    checked = check_labels(found, limits, facts, counts, items, None if is_single else sizes)
    if request.by_bytes:
        return checked, np.array([sizes, [len(label.encode()) for label in labels]], np.int32)
    return checked, nothing if is_single else np.array([sizes], np.int32)
