"""Requests in text to requests in token ids, exact to the token and with the query encoded once.

The reference is what a user would get by sending one item at a time: ``tokenizer(query + item)``, special tokens
included. The longest common prefix of those token sequences becomes the query, the rest are the items' own tokens.
Where `safe_splits` finds a safe split in the query, only the text beyond it is encoded with every item.

An encoder's pair is as its tokenizer joins ``tokenizer(query, item)``, and where one of the two is empty as
``tokenizer(text)`` of the other. On the wire the query holds a pair's beginning up to the item, so that the scorer
knows which tokens have the second token type. A pair whose query comes second, and a text alone, are items without
a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from hiscore.arrays import Int32, common_prefix
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.adapters import choose, has_heads
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.requests.validation import check_prompt
from hiscore.scoring.text.encoding_plan import EncodingPlan, TextRequest, split_query
from hiscore.scoring.text.label_contexts import encode_behind
from hiscore.scoring.text.labels import check_label_inputs, resolve_labels
from hiscore.settings import Limits
from hiscore.tokenization.pair_template import PairTemplate
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TokenizedRequest:
    """A validated request in token ids.

    With `full_encode` the whole query had to be encoded with every one of several items. `label_sizes` are those
    of `resolve_labels`.
    """

    prompt: MultiItemPrompt
    label_token_ids: Int32
    full_encode: bool
    label_sizes: Int32


@dataclass(frozen=True)
class RequestEncoder:
    """Checks, plans and encodes requests by a checkpoint's tokenizer."""

    tokenizer: TextTokenizer
    limits: Limits
    facts: CheckpointFacts

    def check(self, request: TextRequest) -> int:
        """Check what can be checked before a request is planned, and count the bytes of UTF-8 of all texts."""
        items, limits = len(request.items), self.limits
        if items > limits.max_items:
            raise RequestError(f"'items' holds {items} items: at most {limits.max_items} in one call")
        if request.item_first:
            check_item_first(self.tokenizer, self.facts)
        check_label_inputs(request, limits, self._facts_of(request))
        size = _size(request)
        if size > limits.max_text_bytes:
            raise RequestError(
                f"'query', 'items' and 'labels' hold {size} bytes: at most {limits.max_text_bytes} in one call"
            )
        self._check_length(request, size)
        return size

    def plan(self, request: TextRequest) -> EncodingPlan:
        """Split the query of a checked request; raises `RequestError` if too much of it goes with each item."""
        shared, repeated, rule = split_query(self.tokenizer, request)
        items, again = len(request.items), _utf8_length(repeated)
        # A query that cannot be shared is encoded once per item: bound the work as well as the input.
        if (work := again * items) > self.limits.max_text_bytes:
            raise RequestError(
                f"'query' must be encoded again with each of {items} items, {work} bytes in all: at most "
                f"{self.limits.max_text_bytes} in one call. Send fewer items, or put a space into the query"
            )
        return EncodingPlan(request, shared, repeated, rule, _size(request) + again * max(0, items - 1))

    def encode(self, plans: Sequence[EncodingPlan]) -> list[TokenizedRequest | RequestError]:
        """Encode the texts of several requests together, each to an answer or the error that it gets."""
        try:
            return self._encode(plans)
        except Panic:
            if len(plans) == 1:
                return [
                    RequestError("the tokenizer cannot encode 'query', 'items' and 'labels' of this call")
                ]
        # The panic does not say which text caused it.
        return [answer for each in plans for answer in self.encode([each])]

    def _encode(self, plans: Sequence[EncodingPlan]) -> list[TokenizedRequest | RequestError]:
        texts = [plan.texts for plan in plans]
        text_ids, label_ids = self.tokenizer.encode(
            list(chain.from_iterable(texts)), list(chain.from_iterable(plan.labels for plan in plans))
        )
        next_texts, next_labels = iter(text_ids), iter(label_ids)
        return [
            self._finish(
                plan, list(islice(next_texts, len(own_texts))), list(islice(next_labels, len(plan.labels)))
            )
            for own_texts, plan in zip(texts, plans, strict=True)
        ]

    def _facts_of(self, request: TextRequest) -> CheckpointFacts:
        """Facts of the checkpoint under the call's adapters, whose own heads make it a classifier."""
        chosen = choose(request.adapter, request.item_adapters, len(request.items), self.facts)
        return replace(self.facts, is_classifier=True) if has_heads(chosen, self.facts) else self.facts

    def _check_length(self, request: TextRequest, size: int) -> None:
        """Refuse a text that has more tokens than the context holds, however it is encoded."""
        per_token, context = self.tokenizer.bytes_per_token, self.facts.context_length
        if per_token is None or size <= (most := per_token * context):
            return
        longest = _utf8_length(request.query) + max(map(_utf8_length, request.items), default=0)
        if longest > most:
            raise RequestError(
                f"query and item have {longest} bytes together: at most {most} can be {context} tokens "
                "(MAX_CONTEXT)"
            )

    def _finish(
        self, plan: EncodingPlan, text_ids: list[list[int]], label_ids: list[list[int]]
    ) -> TokenizedRequest | RequestError:
        """Join the encoded texts to a prompt, and validate it."""
        request, (shared, *rows) = plan.request, text_ids
        query_alone = shared if plan.asks_where_the_item_begins else None
        if not plan.shared:
            shared = []  # Some tokenizers give special tokens even for an empty text.
        items = rows if request.items else []
        try:
            if self.tokenizer.pair:
                texts = request.query, request.items
                prompt = join_pairs(self.tokenizer.pair, texts, shared, items, request.item_first)
            else:
                prompt = self._join(shared, rows, request, query_alone)
            behind = encode_behind(self.tokenizer, request, label_ids, self.limits.max_text_bytes)
            labels, lengths = resolve_labels(request, behind, self.limits, self._facts_of(request))
            check_prompt(prompt, self.limits, self.facts)
        except RequestError as error:
            return error
        return TokenizedRequest(prompt, labels, plan.full_encode, lengths)

    def _join(
        self, shared: list[int], rows: list[list[int]], request: TextRequest, query_alone: list[int] | None
    ) -> MultiItemPrompt:
        """Put special tokens and the shared part around the rest of each item; all that items share is the query.

        A single item would share everything with itself, and fill the cache of queries with items. So its query
        ends where the query's own text does, or at the split.
        """
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        before = [*prefix] if request.item_first else [*prefix, *shared]
        after = [*shared, *suffix] if request.item_first else [*suffix]
        if after:
            rows = [ids + after for ids in rows]
        common = common_prefix(rows)
        if len(request.items) == 1:
            common = 0 if query_alone is None else common_prefix([query_alone, rows[0]])
        query = before + rows[0][:common]
        return MultiItemPrompt.of(query, [ids[common:] for ids in rows] if request.items else [])


def _size(request: TextRequest) -> int:
    if request.text_bytes is not None:
        return request.text_bytes
    return sum(map(_utf8_length, (request.query, *request.items, *(request.labels or ()))))


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


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
    """Join texts that were encoded each by itself; raises `RequestError` for an empty item that has no place."""
    try:
        return MultiItemPrompt.of(*template.join(*request_texts, query_ids, item_ids, item_first))
    except ValueError as error:
        raise RequestError(str(error)) from None
