"""Checks of a prompt and its labels before they may share a batch with others."""

from collections.abc import Sequence

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.request import MultiItemPrompt
from hiscore.settings import Limits

# Of the hash table that finds labels given twice; the factor is Knuth's, by the golden ratio.
HASH_FACTOR = 0x9E3779B1
HASH_SHIFT = 12
SLOTS_PER_KEY = 8
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
        items: Of the call.

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
    owners = (
        np.zeros(len(label_token_ids), np.int64) if counts is None else np.repeat(np.arange(items), counts)
    )
    _check_distinct(label_token_ids, owners, facts.vocab_size, named=counts is not None)
    return label_token_ids


def check_counts(
    counts: Sequence[int] | None, items: int, labels: int, limits: Limits, facts: CheckpointFacts
) -> None:
    """Check that labels of items' own are as many as there are, and not too many for any item.

    Args:
        counts: As in `ScoreOptions.label_counts`.
        items: Of the call.
        labels: Of the call.
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


def _check_distinct(ids: Int32, owners: Int64, vocab_size: int, named: bool) -> None:
    keys = _perhaps_repeated(owners * vocab_size + ids)
    values, occurrences = np.unique(keys, return_counts=True)
    if len(values) < len(keys):
        owner, label = divmod(int(values[occurrences.argmax()]), vocab_size)
        of_item = f" for item {owner}" if named else ""
        raise RequestError(f"'label_token_ids' holds {label} more than once{of_item}")


def _perhaps_repeated(keys: Int64) -> Int64:
    """Some of the keys, among them every one that is there twice: those that share a slot of a hash table.

    Of 50,000 distinct keys hardly any is left to be sorted, which takes an eighth of the time of sorting them all.
    """
    slots_needed = 1 << (SLOTS_PER_KEY * len(keys)).bit_length()
    slots = (keys * HASH_FACTOR >> HASH_SHIFT) & (min(slots_needed, MOST_SLOTS) - 1)
    places = np.arange(len(keys), dtype=np.int32)
    # Each slot holds the place of one of its keys; what else it had is uninitialised and never read.
    holders = np.empty(min(slots_needed, MOST_SLOTS), np.int32)
    holders[slots] = places
    found = holders[slots]
    shared = found != places
    shared[found[shared]] = True
    perhaps: Int64 = keys[shared]
    return perhaps
