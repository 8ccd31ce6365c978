"""Checks of a prompt and its labels before they may share a batch with others."""

from collections.abc import Sequence

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.settings import Limits


def check_prompt(prompt: MultiItemPrompt, limits: Limits, facts: CheckpointFacts) -> None:
    """Check a prompt against the server's limits and the model.

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
    # An encoder reads the query with every item.
    computed = len(prompt.tokens) + prompt.query_length * (items - 1) if facts.is_encoder else 0
    if computed > limits.max_call_tokens:
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
    if prompt.query_length == 0 and prompt.empty_items:
        item = int(prompt.item_lengths.argmin())
        raise RequestError(f"the query and item {item} are both empty: no token is left to read")


def check_labels(
    label_token_ids: Int32,
    limits: Limits,
    facts: CheckpointFacts,
    counts: Sequence[int] | None = None,
    items: int = 0,
) -> Int32:
    """Check and return label ids: at least one for a causal LM, none for a classifier, no duplicates if shared.

    Duplicates among an item's own are looked for later, while a GPU is at work (`ReadoutPlan.reader`).

    Raises:
        RequestError: The labels are not allowed.
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
    if counts is None:
        check_repeated(label_token_ids)
    return label_token_ids


def check_counts(
    counts: Sequence[int] | None, items: int, labels: int, limits: Limits, facts: CheckpointFacts
) -> None:
    """Refuse counts of items' own labels that do not add up, or are too large for an item."""
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
