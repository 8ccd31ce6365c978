"""Texts of an encoder's request to token ids: query and item as the tokenizer's own template joins a pair.

The reference is what a user would get by sending one item at a time: ``tokenizer(query, item)``, and where one of
the two is empty ``tokenizer(text)`` of the other, as transformers does with an empty second text. On the wire the
query holds a pair's beginning up to the item, so that the scorer knows which tokens have the second token type. A
pair whose query comes second, and a text alone, are items without a query.
"""

from collections.abc import Sequence
from itertools import takewhile

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.request import MultiItemPrompt
from hiscore.tokenization.tokenizer import TextTokenizer


def check_item_first(tokenizer: TextTokenizer, facts: CheckpointFacts) -> None:
    """Refuse the item before the query where token types tell the two apart, which the wire layout cannot say.

    Raises:
        RequestError: The model has such types.
    """
    if tokenizer.pair and facts.token_types > 1 and len(set(tokenizer.pair.token_types)) > 1:
        raise RequestError(
            "parameter 'item_first' must be false: this model's token types say that the query is the first text"
        )


def join_pairs(
    tokenizer: TextTokenizer,
    query: str,
    items: Sequence[str],
    query_ids: Sequence[int],
    item_ids: Sequence[Sequence[int]],
    item_first: bool,
) -> MultiItemPrompt:
    """Join texts that were encoded each by itself, without special tokens.

    Args:
        tokenizer: Of an encoder.
        query: Its text.
        items: Their texts.
        query_ids: Token ids of the query.
        item_ids: Token ids of each item.
        item_first: The item is the pair's first text.

    Raises:
        RequestError: The wire layout has no place for an empty item of this tokenizer.
    """
    template = tokenizer.pair
    assert template is not None

    def alone(ids: Sequence[int]) -> list[int]:
        return [*tokenizer.prefix, *ids, *tokenizer.suffix]

    if not query or not items:
        return MultiItemPrompt.of([], [alone(ids) for ids in item_ids])
    if item_first:
        end = [*template.between, *query_ids, *template.after]
        pairs = [[*template.before, *ids, *end] for ids in item_ids]
        return MultiItemPrompt.of(
            [], [pair if text else alone(query_ids) for text, pair in zip(items, pairs, strict=True)]
        )
    head, only = [*template.before, *query_ids, *template.between], alone(query_ids)
    # XLM-RoBERTa has two separators between texts and one behind a text alone.
    shared = len(head) if all(items) else _common_prefix_length(head, only)
    if shared < len(head) and len(set(template.token_types)) > 1:
        raise RequestError(
            f"item {items.index('')} is empty: this tokenizer cannot tell it from a query alone"
        )
    rows = [
        [*head[shared:], *ids, *template.after] if text else only[shared:]
        for text, ids in zip(items, item_ids, strict=True)
    ]
    return MultiItemPrompt.of(head[:shared], rows)


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    same = (a == b for a, b in zip(first, second, strict=False))
    return sum(takewhile(bool, same))
