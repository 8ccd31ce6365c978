"""What a call in token space must satisfy before it may share a batch with others."""

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.request import Call, unpack
from hiscore.settings import Limits


def check_call(input_ids: Int32, delimiter_indices: Int32, limits: Limits, facts: CheckpointFacts) -> Call:
    """Turn a layout (both int32, one-dimensional) into a `Call`, or say what is wrong with it.

    Raises:
        RequestError: indices not ascending, out of range or not ending the sequence; ids out of the vocabulary;
            query plus an item longer than the context; nothing to read; more than the configured limits.
    """
    check_layout(input_ids, delimiter_indices)
    call = unpack(input_ids, delimiter_indices)
    items = len(call.item_lengths)
    if items > limits.max_items:
        raise RequestError(
            f"'delimiter_indices' lays out {items} items: at most {limits.max_items} in one call"
        )
    if len(call.tokens) > limits.max_call_tokens:
        raise RequestError(
            f"'input_ids' holds {len(call.tokens)} tokens: at most {limits.max_call_tokens} in one call"
        )
    check_ids("input_ids", call.tokens, facts.vocab_size)
    longest = call.query_length + int(call.item_lengths.max(initial=0))
    if longest > facts.context_length:
        raise RequestError(
            f"query and item have {longest} tokens together: the model's context holds {facts.context_length}"
        )
    if items and call.query_length + int(call.item_lengths.min()) == 0:
        item = int(call.item_lengths.argmin())
        raise RequestError(f"the query and item {item} are both empty: no token is left to read")
    return call


def check_layout(input_ids: Int32, delimiter_indices: Int32) -> None:
    """Check that the indices ascend strictly, lie in the sequence and end it."""
    if len(delimiter_indices) == 0:
        raise RequestError("'delimiter_indices' is empty: one delimiter ends even a call without items")
    low, high = int(delimiter_indices.min()), int(delimiter_indices.max())
    if low < 0 or high >= len(input_ids):
        wrong = low if low < 0 else high
        raise RequestError(
            f"'delimiter_indices' holds {wrong}: out of range for 'input_ids' of length {len(input_ids)}"
        )
    steps = np.diff(delimiter_indices.astype(np.int64))
    if (steps <= 0).any():
        at = int((steps <= 0).argmax())
        raise RequestError(
            f"'delimiter_indices' must ascend strictly: {int(delimiter_indices[at])} is followed by "
            f"{int(delimiter_indices[at + 1])} at place {at + 1}"
        )
    if int(delimiter_indices[-1]) != len(input_ids) - 1:
        raise RequestError(
            f"'delimiter_indices' must end the sequence: the last is {int(delimiter_indices[-1])}, "
            f"'input_ids' ends at {len(input_ids) - 1}"
        )


def check_labels(label_token_ids: Int32, limits: Limits, facts: CheckpointFacts) -> Int32:
    """Check the label ids of a call: at least one for a causal LM, none for a classifier, no duplicates."""
    if facts.is_classifier:
        if len(label_token_ids):
            raise RequestError(
                "'label_token_ids' must be empty: this model is a classifier with its own labels"
            )
        return label_token_ids
    if len(label_token_ids) == 0:
        raise RequestError("'label_token_ids' is empty: this model needs at least one label")
    if len(label_token_ids) > limits.max_labels:
        raise RequestError(
            f"'label_token_ids' holds {len(label_token_ids)} labels: at most {limits.max_labels} in one call"
        )
    check_ids("label_token_ids", label_token_ids, facts.vocab_size)
    values, counts = np.unique(label_token_ids, return_counts=True)
    if len(values) < len(label_token_ids):
        raise RequestError(f"'label_token_ids' holds {int(values[counts.argmax()])} more than once")
    return label_token_ids
