"""Texts of an encoder's request to token ids: query and item as the tokenizer's own template joins a pair.

The reference is what a user would get by sending one item at a time: ``tokenizer(query, item)``, and where one of
the two is empty ``tokenizer(text)`` of the other, as transformers does with an empty second text. On the wire the
query holds a pair's beginning up to the item, so that the scorer knows which tokens have the second token type. A
pair whose query comes second, and a text alone, are items without a query.
"""

from collections.abc import Sequence

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.tokenization.pair_template import PairTemplate
from hiscore.tokenization.tokenizer import TextTokenizer


def check_item_first(tokenizer: TextTokenizer, facts: CheckpointFacts) -> None:
    """Refuse the item before the query where token types tell the two apart, which the wire layout cannot say."""
    if tokenizer.pair and facts.token_types > 1 and len(set(tokenizer.pair.token_types)) > 1:
        raise RequestError(
            "parameter 'item_first' must be false: this model's token types say that the query is the first text"
        )


def join_pairs(
    template: PairTemplate,
    request_texts: tuple[str, Sequence[str]],
    query_ids: Sequence[int],
    item_ids: Sequence[Sequence[int]],
    item_first: bool,
) -> MultiItemPrompt:
    """Join texts that were encoded each by itself.

    Raises:
        RequestError: The wire layout has no place for an empty item of this tokenizer.
    """
    try:
        return MultiItemPrompt.of(*template.join(*request_texts, query_ids, item_ids, item_first))
    except ValueError as error:
        raise RequestError(str(error)) from None
