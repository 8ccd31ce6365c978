"""Adapters of a call's items: which are asked for, the tokens that each computes, and the heads that are read.

A token that an adapter computes is another token: the adapter's number is in the upper bits of its id. So the
cache, and what is grouped by tokens, never takes one for the other. Until its invocation an activated adapter
(aLoRA) leaves tokens as they are: their keys and values are those of every other call.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import TOKEN_BITS
from hiscore.errors import RequestError
from hiscore.models.adapter_files import AdapterFacts
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.request import MultiItemPrompt

SHOWN = 32
"""Names that a message lists."""
Chosen = Sequence[AdapterFacts | None]
"""The adapter of each item; None: the checkpoint alone."""


def choose(name: str, names: Sequence[str] | None, items: int, facts: CheckpointFacts) -> Chosen:
    """Look up the adapter of each item by `adapter` or `item_adapters`; empty: none is asked for."""
    if not name and names is None:
        return ()
    if names is not None and len(names) != items:
        raise RequestError(
            f"parameter 'item_adapters' holds {len(names)} names for {items} items: one is needed for each"
        )
    for each in {name, *(names or ())} - {"", *facts.adapters}:
        known = ", ".join([*facts.adapters][:SHOWN]) + ", ..." * (len(facts.adapters) > SHOWN)
        raise RequestError(
            f"adapter '{each[:64]}' is none of {known or 'those loaded: there are none'} (ADAPTERS)"
        )
    asked = [name] * items if names is None else names
    return [facts.adapters.get(each) for each in asked] if any(asked) else ()


def has_heads(chosen: Chosen, facts: CheckpointFacts) -> bool:
    """Tell whether items are read by adapters' own heads, or raise RequestError: some are, and some by labels."""
    headed = [each is not None and each.labels > 0 for each in chosen]
    if any(headed) and not all(headed) and not facts.is_classifier:
        raise RequestError(
            f"item {headed.index(True)} is read by its adapter's own head, and item {headed.index(False)} by "
            "labels: send two calls"
        )
    return any(headed)


def rows_of_heads(chosen: Chosen, facts: CheckpointFacts) -> tuple[Int32, Int64]:
    """Find the rows of each item's labels among those of all heads, int32 [labels of all items], and their counts.

    The checkpoint's own head is behind those of adapters.
    """
    own = sum(each.labels for each in facts.adapters.values()), facts.labels
    spans = [(each.first_label, each.labels) if each is not None and each.labels else own for each in chosen]
    rows = [np.arange(first, first + count, dtype=np.int32) for first, count in spans]
    return np.concatenate([np.empty(0, np.int32), *rows]), np.array([count for _, count in spans], np.int64)


def under(prompt: MultiItemPrompt, chosen: Chosen) -> MultiItemPrompt:
    """Mark the tokens that adapters compute."""
    query, lengths = prompt.query_length, prompt.item_lengths
    numbers = np.array([0 if each is None else each.number for each in chosen], np.int32)
    begins = np.zeros(len(chosen), np.int64)
    for invocation in {each.invocation for each in chosen if each is not None and each.invocation}:
        activated = [each is not None and each.invocation == invocation for each in chosen]
        begins[activated] = invocations(prompt, invocation)[activated]
    marks = numbers << TOKEN_BITS
    tokens = prompt.tokens.copy()
    places = np.arange(query, len(tokens)) - (prompt.item_ends[:-1] - query).repeat(lengths)
    tokens[query:] += np.where(places >= begins.repeat(lengths), marks.repeat(lengths), 0)
    # Items whose adapters compute the query otherwise need other queries.
    kinds = [(mark, begin) if begin < query else (0, 0) for mark, begin in zip(marks, begins, strict=True)]
    of_kind = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    queries = []
    for mark, begin in of_kind:
        queries.append(prompt.tokens[:query].copy())
        queries[-1][begin:] += mark
    tokens[:query] = queries[0] if queries else tokens[:query]
    if len(queries) < 2:
        return replace(prompt, tokens=tokens)
    return replace(
        prompt, tokens=tokens, queries=tuple(queries), query_of=np.array([of_kind[kind] for kind in kinds])
    )


def invocations(prompt: MultiItemPrompt, sequence: Sequence[int]) -> Int64:
    """Find where a sequence last begins in the query and each item, int64 [items], counted from the query's first
    token; where there is none, behind all tokens.

    Source: peft.tuners.lora.variants.calculate_alora_offsets.
    """
    tokens, query, wanted = prompt.tokens, prompt.query_length, np.array(sequence, np.int32)
    ends, lengths, size = prompt.item_ends, prompt.item_lengths, len(sequence)
    of_query, of_items = (_occurrences(part, wanted) for part in (tokens[:query], tokens[query:]))
    found = np.full(len(lengths), of_query[-1] if len(of_query) else len(tokens), np.int64)
    for before in range(min(size - 1, query), 0, -1):
        if (tokens[query - before : query] == wanted[:before]).all():
            behind = wanted[before:]
            long = np.flatnonzero(lengths >= len(behind))
            heads = tokens[ends[long][:, None] + np.arange(len(behind))]
            found[long[(heads == behind).all(axis=1)]] = query - before
    owners = ends.searchsorted(of_items + query, "right") - 1
    inside = of_items + query + size <= ends[owners + 1]
    # The last occurrence in an item counts.
    found[owners[inside]] = (of_items + 2 * query - ends[owners])[inside]
    return found


def _occurrences(tokens: Int32, wanted: Int32) -> Int64:
    if len(tokens) < len(wanted):
        return np.empty(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    return np.flatnonzero((windows == wanted).all(axis=1))
