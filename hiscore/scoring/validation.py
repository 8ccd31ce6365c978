"""Checks of a prompt and its labels before they may share a batch with others."""

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.request import MultiItemPrompt
from hiscore.settings import Limits


def check_prompt(prompt: MultiItemPrompt, limits: Limits, facts: CheckpointFacts) -> None:
    """Check a prompt against the server's limits and the model.

    Args:
        prompt: Query and items.
        limits: Bounds the number of items and tokens.
        facts: Sizes of the vocabulary and the context.

    Raises:
        RequestError: More items or tokens than the limits allow, ids out of the vocabulary, query plus an item
            longer than the context, or query and an item both empty.
    """
    items = len(prompt.item_lengths)
    if items > limits.max_items:
        raise RequestError(
            f"'delimiter_indices' lays out {items} items: at most {limits.max_items} in one call"
        )
    if len(prompt.tokens) > limits.max_call_tokens:
        raise RequestError(
            f"'input_ids' holds {len(prompt.tokens)} tokens: at most {limits.max_call_tokens} in one call"
        )
    check_ids("input_ids", prompt.tokens, facts.vocab_size)
    longest = prompt.query_length + int(prompt.item_lengths.max(initial=0))
    if longest > facts.context_length:
        raise RequestError(
            f"query and item have {longest} tokens together: at most {facts.context_length} (MAX_CONTEXT)"
        )
    if items and prompt.query_length + int(prompt.item_lengths.min()) == 0:
        item = int(prompt.item_lengths.argmin())
        raise RequestError(f"the query and item {item} are both empty: no token is left to read")


def check_labels(label_token_ids: Int32, limits: Limits, facts: CheckpointFacts) -> Int32:
    """Check label ids: at least one for a causal LM, none for a classifier, no duplicates.

    Args:
        label_token_ids: int32 [labels].
        limits: Bounds the number of labels.
        facts: Vocabulary size, and whether the model is a classifier.

    Returns:
        The same ids.

    Raises:
        RequestError: They are not allowed.
    """
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
