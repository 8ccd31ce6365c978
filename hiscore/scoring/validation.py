"""Checks of a prompt and its labels before they may share a batch with others."""

from collections.abc import Sequence

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.request import MultiItemPrompt
from hiscore.settings import Limits

# Of the hash tables that find labels given twice; the factors are odd, the first is Knuth's by the golden ratio.
HASH_FACTORS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)
HASH_SHIFT = 12
SLOTS_PER_KEY = 4
MOST_SLOTS = 2**20
"""4 MiB."""


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
    computed = items * prompt.query_length + int(prompt.item_lengths.sum())
    if facts.is_encoder and computed > limits.max_call_tokens:
        raise RequestError(
            f"query and items make pairs of {computed} tokens in all, since an encoder reads the query with every "
            f"item: at most {limits.max_call_tokens} in one call"
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


def check_labels(
    label_token_ids: Int32,
    limits: Limits,
    facts: CheckpointFacts,
    counts: Sequence[int] | None = None,
    items: int = 0,
) -> Int32:
    """Check label ids: at least one for a causal LM, none for a classifier, no duplicates among an item's own.

    Args:
        label_token_ids: int32 [labels].
        limits: Bounds the number of an item's labels.
        facts: Vocabulary size, and whether the model is a classifier.
        counts: As in `ScoreOptions.label_counts`.
        items: How many the call has.

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
        check_counts(counts, items, 0, limits, facts)
        return label_token_ids
    check_counts(counts, items, len(label_token_ids), limits, facts)
    if len(label_token_ids) == 0 and counts is None:
        raise RequestError("'label_token_ids' is empty: this model needs at least one label")
    if counts is None and len(label_token_ids) > limits.max_labels:
        raise RequestError(
            f"'label_token_ids' holds {len(label_token_ids)} labels: at most {limits.max_labels} in one call"
        )
    check_ids("label_token_ids", label_token_ids, facts.vocab_size)
    keys = label_token_ids.astype(np.int64)
    if counts is not None:
        keys += np.repeat(np.arange(items) * facts.vocab_size, counts)
    if _is_any_repeated(keys):
        values, occurrences = np.unique(keys, return_counts=True)
        owner, label = divmod(int(values[occurrences.argmax()]), facts.vocab_size)
        of_item = "" if counts is None else f" for item {owner}"
        raise RequestError(f"'label_token_ids' holds {label} more than once{of_item}")
    return label_token_ids


def check_counts(
    counts: Sequence[int] | None, items: int, labels: int, limits: Limits, facts: CheckpointFacts
) -> None:
    """Check that labels of items' own are as many as there are, and not too many for any item.

    Args:
        counts: As in `ScoreOptions.label_counts`.
        items: How many the call has.
        labels: How many the call has.
        limits: Bounds the number of an item's labels.
        facts: Whether the model is a classifier.

    Raises:
        RequestError: They do not fit.
    """
    if counts is None:
        return
    if facts.is_classifier:
        raise RequestError("'label_counts' must not be given: this model is a classifier with its own labels")
    if len(counts) != items:
        raise RequestError(
            f"'label_counts' holds {len(counts)} numbers for {items} items: one is needed for each"
        )
    if sum(counts) != labels:
        raise RequestError(f"'label_counts' adds up to {sum(counts)}, but {labels} labels were given")
    if counts and max(counts) > limits.max_labels:
        raise RequestError(
            f"'label_counts' gives item {counts.index(max(counts))} {max(counts)} labels: at most "
            f"{limits.max_labels} for one item"
        )


def _is_any_repeated(keys: Int64) -> bool:
    """Whether any key is there twice, by hash tables: 50,000 keys take an eighth of the time of sorting them.

    Every key goes to a slot, which keeps one of its keys. Keys that are there twice share a slot: one of them is
    what the slot kept, or neither is. So those that were not kept are compared with what was, and then among
    themselves, in a table of their own.
    """
    for factor in HASH_FACTORS:
        if not len(keys):
            return False
        slot_count = min(1 << (SLOTS_PER_KEY * len(keys)).bit_length(), MOST_SLOTS)
        slots = keys * factor
        slots >>= HASH_SHIFT
        slots &= slot_count - 1
        places = np.arange(len(keys), dtype=np.int32)
        # What is not written to is uninitialised, and never read.
        kept = np.empty(slot_count, np.int32)
        kept[slots] = places
        found = kept.take(slots, mode="wrap")  # all are inside; this mode is the fastest
        lost = np.flatnonzero(found != places)
        left = keys[lost]
        if (left == keys[found[lost]]).any():
            return True
        keys = left
    # Few are ever left, unless somebody chose them to share slots.
    return len(np.unique(keys)) < len(keys)
