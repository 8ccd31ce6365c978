"""A request in text, and the parts of its query that are encoded once or with every item."""

from collections.abc import Sequence
from dataclasses import dataclass

from hiscore.arrays import Int32
from hiscore.tokenization.split_rule import SplitRule
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TextRequest:
    """A request in text, as it was sent.

    Attributes:
        query: Valid Unicode, like all texts here: no lone surrogates.
        label_token_ids: int32 [labels].
        text_bytes: UTF-8 bytes of all texts; None if they have not been counted.
        label_lengths: Tokens of each label in `label_token_ids`; None: one each.
        by_bytes: Scores are normalized by the labels' bytes.
    """

    query: str
    items: Sequence[str]
    labels: Sequence[str] | None = None
    label_token_ids: Int32 | None = None
    item_first: bool = False
    text_bytes: int | None = None
    label_counts: Sequence[int] | None = None
    label_lengths: Sequence[int] | None = None
    by_bytes: bool = False
    adapter: str = ""
    item_adapters: Sequence[str] | None = None


@dataclass(frozen=True)
class EncodingPlan:
    """The way in which a request is encoded, at a `cost` in bytes of UTF-8.

    The `shared` part of the query is encoded once, the rest, `repeated`, with every item, next to it.
    """

    request: TextRequest
    shared: str
    repeated: str
    rule: SplitRule | None
    cost: int

    @property
    def texts(self) -> list[str]:
        """The shared part, then one text per item; without items the query alone."""
        if not self.request.items:
            return ["", self.request.query]
        if self.request.item_first:
            shared = self.rule.second(self.shared) if self.rule else self.shared
            return [shared, *(item + self.repeated for item in self.request.items)]
        # Of a query that cannot be split, its own tokens say where a single item begins.
        shared = self.request.query if self.asks_where_the_item_begins else self.shared
        rows = [self.repeated + item for item in self.request.items]
        return [shared, *(map(self.rule.second, rows) if self.rule else rows)]

    @property
    def asks_where_the_item_begins(self) -> bool:
        return not self.shared and not self.request.item_first and len(self.request.items) == 1

    @property
    def labels(self) -> Sequence[str]:
        return self.request.labels or ()

    @property
    def full_encode(self) -> bool:
        return not self.shared and bool(self.repeated) and len(self.request.items) > 1


def split_query(tokenizer: TextTokenizer, request: TextRequest) -> tuple[str, str, SplitRule | None]:
    """Split a query into the part to encode once and the part to encode with every item."""
    rule = tokenizer.splits
    if tokenizer.pair:
        return request.query, "", None
    split = None
    if rule is not None and request.items:
        split = rule.first(request.query) if request.item_first else rule.last(request.query)
    if split is None:
        return "", request.query, None
    head, tail = request.query[:split], request.query[split:]
    return (tail, head, rule) if request.item_first else (head, tail, rule)
