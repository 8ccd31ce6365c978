"""The special tokens that a tokenizer puts around and between the two texts of a pair."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from tokenizers import Tokenizer

from hiscore.arrays import common_prefix

# Different in length, script and first character; nothing in them is special to any tokenizer.
PROBES = ("a", " b c", "Is 12 a number?\n", "你好")


@dataclass(frozen=True)
class PairTemplate:
    """The tokens around two texts that make them a pair; each text is encoded by itself, without special tokens.

    Attributes:
        alone: Token ids before and after a text that makes no pair.
        token_types: Type of the first text with `before` and `between`, and of the second with `after`.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    alone: tuple[tuple[int, ...], tuple[int, ...]]
    token_types: tuple[int, int] = (0, 0)

    def join(
        self,
        query: str,
        items: Sequence[str],
        query_ids: Sequence[int],
        item_ids: Sequence[Sequence[int]],
        item_first: bool = False,
    ) -> tuple[list[int], list[list[int]]]:
        """Join a query with each item, by ids without special tokens; a text beside an empty one makes no pair.

        Returns:
            The ids with which all sequences begin, up to the item at most, and those with which each continues. A
            pair whose query comes second (`item_first`), and a text alone, are in the second part.

        Raises:
            ValueError: There is no such beginning for an empty item, and token types depend on it.
        """
        if not query or not items:
            return [], [self._alone(ids) for ids in item_ids]
        if item_first:
            end = [*self.between, *query_ids, *self.after]
            both = zip(items, item_ids, strict=True)
            return [], [[*self.before, *ids, *end] if text else self._alone(query_ids) for text, ids in both]
        head, only = [*self.before, *query_ids, *self.between], self._alone(query_ids)
        # XLM-RoBERTa has two separators between texts and one behind a text alone.
        shared = len(head) if all(items) else common_prefix((head, only))
        if shared < len(head) and len(set(self.token_types)) > 1:
            raise ValueError(
                f"item {list(items).index('')} is empty: this tokenizer cannot tell it from a query alone"
            )
        both = zip(items, item_ids, strict=True)
        return head[:shared], [
            [*head[shared:], *ids, *self.after] if text else only[shared:] for text, ids in both
        ]

    def _alone(self, ids: Sequence[int]) -> list[int]:
        return [*self.alone[0], *ids, *self.alone[1]]


def read_pair_template(backend: Tokenizer) -> PairTemplate | None:
    """The template of a fast tokenizer, without token types; None if a text has no tokens in its pair."""
    pair, single = backend.encode(PROBES[2], PROBES[3]), backend.encode(PROBES[2])
    texts = pair.sequence_ids  # 0, 1, or None for a special token
    if not {0, 1} <= set(texts) or 0 not in single.sequence_ids:
        return None
    (first, last), (second, end) = _span(texts, 0), _span(texts, 1)
    begin, stop = _span(single.sequence_ids, 0)
    return PairTemplate(
        before=tuple(pair.ids[:first]),
        between=tuple(pair.ids[last:second]),
        after=tuple(pair.ids[end:]),
        alone=(tuple(single.ids[:begin]), tuple(single.ids[stop:])),
    )


def find_pair_template(backend: Tokenizer, has_types: bool) -> PairTemplate | None:
    """Take a fast tokenizer's template from what it does to pairs of probes; None if they show none.

    Args:
        has_types: The model gets the tokenizer's token types, and not zeros alone.
    """
    template = read_pair_template(backend)
    if template is None:
        return None
    types = backend.encode(PROBES[2], PROBES[3]).type_ids
    template = replace(template, token_types=(types[0], types[-1]) if has_types else (0, 0))
    holds = all(_holds(template, backend, has_types, *pair) for pair in product(PROBES, PROBES))
    return template if holds else None


def _span(texts: Sequence[int | None], text: int) -> tuple[int, int]:
    """From a text's first token to behind its last."""
    return texts.index(text), len(texts) - list(reversed(texts)).index(text)


def _holds(template: PairTemplate, backend: Tokenizer, has_types: bool, first: str, second: str) -> bool:
    a, b = (backend.encode(text, add_special_tokens=False).ids for text in (first, second))
    query, (item,) = template.join(first, [second], a, [b])
    _, (alone,) = template.join("", [first], [], [a])
    types = [template.token_types[0]] * len(query) + [template.token_types[1]] * len(item)
    pair = backend.encode(first, second)
    return (
        query + item == pair.ids
        and (types == pair.type_ids or not has_types)
        and alone == backend.encode(first).ids
    )
