"""Checks of a prompt and its labels before they may share a batch with others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.scoring.requests.label_trie import LABEL_ROWS, tries_of
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.settings import Limits


def check_prompt(prompt: MultiItemPrompt, limits: Limits, facts: CheckpointFacts) -> None:
    items = len(prompt.item_lengths)
    if items > limits.max_items:
        raise RequestError(
            f"'delimiter_indices' lays out {items} items: at most {limits.max_items} in one call"
        )
    if len(prompt.tokens) > limits.max_call_tokens:
        raise RequestError(
            f"'input_ids' holds {len(prompt.tokens)} tokens: at most {limits.max_call_tokens} in one call"
        )
    # Attention in both directions reads the query with every item.
    computed = len(prompt.tokens) + prompt.query_length * (items - 1) if facts.is_encoder else 0
    if computed > limits.max_call_tokens:
        raise RequestError(
            f"query and items make pairs of {computed} tokens in all, since this model reads the query with every "
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


def with_places(
    prompt: MultiItemPrompt, options: ScoreOptions, facts: CheckpointFacts
) -> tuple[MultiItemPrompt, Int32]:
    """Give a prompt the places that are asked for; returns these, too, as its caller counts: int32 [places].

    A query may come from the cache, without rows to read: with a place in it, it becomes a part of the only item.
    """
    query, tokens = prompt.query_length, len(prompt.tokens)
    if not facts.is_classifier or (facts.is_encoder and not facts.scores_tokens):
        raise RequestError("this model has no values at places: it is read at the end of an item alone")
    if facts.is_guard and options.apply_softmax:
        raise RequestError("this model has several groups of labels: 'apply_softmax' must be false")
    if facts.is_encoder and query:
        raise RequestError(
            "an encoder's tokens are classified in one text: send it as an item, without a query"
        )
    if options.places not in ("all", None):
        places = np.array(options.places, np.int64)
    elif options.places is None and facts.step_id is not None:
        places = np.flatnonzero(prompt.tokens == facts.step_id)
    else:
        places = np.arange(tokens)
    if len(places) and places[-1] >= tokens:
        raise RequestError(f"parameter 'places' holds {places[-1]}: query and items have {tokens} tokens")
    named = places.astype(np.int32)
    if len(places) and places[0] < query:
        if len(prompt.item_lengths) != 1:
            raise RequestError(
                f"place {places[0]} is in the query of {len(prompt.item_lengths)} items: it needs exactly one item"
            )
        prompt = MultiItemPrompt(prompt.tokens, 0, np.array([tokens]))
        query = 0
    return replace(prompt, places=places - query), named


def check_labels(
    label_token_ids: Int32,
    limits: Limits,
    facts: CheckpointFacts,
    counts: Sequence[int] | None = None,
    items: int = 0,
    lengths: Sequence[int] | None = None,
) -> Int32:
    """Check and return label ids: at least one for a causal LM, none for a classifier, no duplicates if shared.

    Duplicates among an item's own are looked for later, while a GPU is at work (`ReadoutPlan.reader`), and among
    labels with `lengths` by `with_tries`.
    """
    if facts.is_classifier:
        if len(label_token_ids):
            raise RequestError(
                "'label_token_ids' must be empty: this model is a classifier with its own labels"
            )
        check_counts("label_token_ids", 0, counts, items, limits, facts)
        return label_token_ids
    labels = len(label_token_ids) if lengths is None else len(lengths)
    if lengths is not None and sum(lengths) != len(label_token_ids):
        raise RequestError(
            f"'label_lengths' adds up to {sum(lengths)}, but 'label_token_ids' holds {len(label_token_ids)} tokens"
        )
    check_counts("label_token_ids", labels, counts, items, limits, facts)
    check_ids("label_token_ids", label_token_ids, facts.vocab_size)
    if counts is None and (lengths is None or set(lengths) == {1}):
        check_repeated(label_token_ids)
    return label_token_ids


def with_tries(
    prompt: MultiItemPrompt,
    ids: Int32,
    lengths: Sequence[int] | None,
    label_bytes: Sequence[int] | None,
    options: ScoreOptions,
    limits: Limits,
    facts: CheckpointFacts,
) -> MultiItemPrompt:
    """Add the tries of labels that have been checked, if the score of one is more than a column of the head."""
    of_tokens = options.normalize != "none" or options.token_logprobs is not None
    if facts.is_classifier:
        if of_tokens or lengths or (options.log_scores and not options.apply_softmax):
            raise RequestError(
                "'label_lengths', 'normalize' and 'token_logprobs' must not be given, nor 'log_scores' without "
                "'apply_softmax': this model is a classifier, which gives no token a probability"
            )
        return prompt
    if lengths is not None and set(lengths) == {1}:
        lengths = None
    if lengths is not None and options.raw_logits:
        raise RequestError("parameter 'raw_logits' must be false: a label of several tokens has no logit")
    if not (lengths or of_tokens or (options.log_scores and not options.apply_softmax)):
        return prompt
    lengths = lengths or [1] * len(ids)
    sizes = {"none": (), "tokens": lengths, "bytes": label_bytes}[options.normalize]
    if sizes is None:
        raise RequestError("parameter 'normalize' is 'bytes': give 'labels' as text, token ids have none")
    values = 1 if options.token_logprobs is None else 2 + 2 * options.token_logprobs
    sharing = 1 if options.label_counts else len(prompt.item_lengths)
    if (told := values * sharing * len(ids)) > limits.max_call_tokens:
        raise RequestError(
            f"the labels of all items have {told // values} tokens, with {values} values each: at most "
            f"{limits.max_call_tokens} in one call (MAX_CALL_TOKENS)"
        )
    tries = tries_of(ids, lengths, sizes, options.label_counts, len(prompt.item_lengths))
    behind = np.array([trie.lengths.max(initial=0) for trie in tries], np.int64)
    longest = prompt.query_length + prompt.item_lengths + behind
    if longest.max(initial=0) > facts.context_length:
        raise RequestError(
            f"query, item {int(longest.argmax())} and a label have {longest.max()} tokens together: at most "
            f"{facts.context_length} (MAX_CONTEXT)"
        )
    rows, most = [trie.reads for trie in tries], max(LABEL_ROWS, facts.context_length)
    if max(rows, default=0) > most:
        raise RequestError(
            f"the labels of item {rows.index(max(rows))} are read at {max(rows)} tokens: at most {most} for one "
            "item. Send some of its labels in another call"
        )
    return replace(prompt, tries=tries)


def check_computed(prompt: MultiItemPrompt, limits: Limits) -> None:
    """Refuse a prompt that takes too much work with the labels behind its items, or a query for each adapter."""
    if prompt.computed > limits.max_call_tokens:
        again = f", the query {len(prompt.queries)} times for their adapters" if prompt.queries else ""
        raise RequestError(
            f"query, items and their labels make {prompt.computed} tokens to compute{again}: at most "
            f"{limits.max_call_tokens} in one call (MAX_CALL_TOKENS)"
        )


def check_counts(
    name: str, labels: int, counts: Sequence[int] | None, items: int, limits: Limits, facts: CheckpointFacts
) -> None:
    """Refuse too few or too many labels, or counts of items' own that do not add up."""
    if facts.is_classifier:
        if counts is not None:
            raise RequestError(
                "'label_counts' must not be given: this model is a classifier with its own labels"
            )
        return
    if counts is None:
        if not labels:
            raise RequestError(f"'{name}' is empty: this model needs at least one label")
        if labels > limits.max_labels:
            raise RequestError(f"'{name}' holds {labels} labels: at most {limits.max_labels} in one call")
        return
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
