"""Requests in text to requests in token ids, exact to the token and with the query encoded once.

The reference is what a user would get by sending one item at a time: ``tokenizer(query + item)``, special tokens
included. The longest common prefix of those token sequences becomes the query, the rest are the items' own tokens.
Where `safe_splits` finds a safe split in the query, only the text beyond it is encoded with every item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.labels import check_label_inputs, resolve_labels
from hiscore.scoring.layout import lay_out
from hiscore.scoring.pair_text import check_item_first, join_pairs
from hiscore.scoring.request import MultiItemPrompt
from hiscore.scoring.validation import check_prompt
from hiscore.settings import Limits
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.safe_splits import first_split, last_split
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TextRequest:
    """A request in text, as it was sent.

    Attributes:
        query: Valid Unicode, like all texts here: no lone surrogates.
        items: One text per item.
        labels: One text per label, or None if not sent.
        label_token_ids: int32 [labels], or None if not sent.
        item_first: Join ``item + query`` instead of ``query + item``.
        text_bytes: UTF-8 bytes of all texts; None if they have not been counted.
        label_counts: As in `ScoreOptions`.
    """

    query: str
    items: Sequence[str]
    labels: Sequence[str] | None = None
    label_token_ids: Int32 | None = None
    item_first: bool = False
    text_bytes: int | None = None
    label_counts: Sequence[int] | None = None


@dataclass(frozen=True)
class TokenizedRequest:
    """A validated request in the wire layout of `scoring.layout`.

    Attributes:
        input_ids: int32 [tokens + items + 1].
        delimiter_indices: int32 [items + 1].
        label_token_ids: int32 [labels].
        full_encode: The whole query had to be encoded with every one of several items.
    """

    input_ids: Int32
    delimiter_indices: Int32
    label_token_ids: Int32
    full_encode: bool


@dataclass(frozen=True)
class _Plan:
    """How a request is encoded.

    Attributes:
        request: The request.
        shared: The part of the query that is encoded once.
        repeated: The rest of it, next to the items, which is encoded with every item.
    """

    request: TextRequest
    shared: str
    repeated: str

    @property
    def texts(self) -> list[str]:
        """The shared part, then one text per item; without items the query alone."""
        if not self.request.items:
            return ["", self.request.query]
        if self.request.item_first:
            return [self.shared, *(item + self.repeated for item in self.request.items)]
        return [self.shared, *(self.repeated + item for item in self.request.items)]

    @property
    def labels(self) -> Sequence[str]:
        return self.request.labels or ()

    @property
    def full_encode(self) -> bool:
        return not self.shared and bool(self.repeated) and len(self.request.items) > 1


def encode_requests(
    tokenizer: TextTokenizer, requests: Sequence[TextRequest], limits: Limits, facts: CheckpointFacts
) -> list[TokenizedRequest | RequestError]:
    """Encode the texts of all requests together.

    Args:
        tokenizer: The checkpoint's.
        requests: Texts as they were sent.
        limits: Bounds of one call.
        facts: Sizes to validate against.

    Returns:
        One answer per request; a `RequestError` for those that cannot be served.
    """
    try:
        return _encode(tokenizer, requests, limits, facts)
    except Panic:
        if len(requests) == 1:
            return [RequestError("the tokenizer cannot encode 'query', 'items' and 'labels' of this call")]
    # The panic does not say which text caused it.
    return [answer for each in requests for answer in encode_requests(tokenizer, [each], limits, facts)]


def _encode(
    tokenizer: TextTokenizer, requests: Sequence[TextRequest], limits: Limits, facts: CheckpointFacts
) -> list[TokenizedRequest | RequestError]:
    plans = [_plan(tokenizer, request, limits, facts) for request in requests]
    good = [plan for plan in plans if isinstance(plan, _Plan)]
    texts = [plan.texts for plan in good]
    text_ids, label_ids = tokenizer.encode(
        list(chain.from_iterable(texts)), list(chain.from_iterable(plan.labels for plan in good))
    )
    next_texts, next_labels = iter(text_ids), iter(label_ids)
    encoded = iter(
        [
            (list(islice(next_texts, len(own_texts))), list(islice(next_labels, len(plan.labels))))
            for own_texts, plan in zip(texts, good, strict=True)
        ]
    )
    return [
        plan if isinstance(plan, RequestError) else _finish(tokenizer, plan, *next(encoded), limits, facts)
        for plan in plans
    ]


def _plan(
    tokenizer: TextTokenizer, request: TextRequest, limits: Limits, facts: CheckpointFacts
) -> _Plan | RequestError:
    """Check what can be checked before encoding, then split the query."""
    try:
        items = len(request.items)
        if items > limits.max_items:
            raise RequestError(f"'items' holds {items} items: at most {limits.max_items} in one call")
        if request.item_first:
            check_item_first(tokenizer, facts)
        counts = request.label_counts
        check_label_inputs(request.labels, request.label_token_ids, limits, facts, counts, items)
        size = request.text_bytes
        if size is None:
            size = sum(map(_utf8_length, (request.query, *request.items, *(request.labels or ()))))
        if size > limits.max_text_bytes:
            raise RequestError(
                f"'query', 'items' and 'labels' hold {size} bytes: at most {limits.max_text_bytes} in one call"
            )
        plan = _Plan(request, *_split_query(tokenizer, request))
        # A query that cannot be shared is encoded once per item: bound the work as well as the input.
        work = _utf8_length(plan.repeated) * items
        if work > limits.max_text_bytes:
            raise RequestError(
                f"'query' must be encoded again with each of {items} items, {work} bytes in all: "
                f"at most {limits.max_text_bytes} in one call. Send fewer items, or put a space into the query"
            )
    except RequestError as error:
        return error
    return plan


def _split_query(tokenizer: TextTokenizer, request: TextRequest) -> tuple[str, str]:
    """The part of the query to encode once, and the part to encode with every item."""
    if tokenizer.pair:
        return request.query, ""
    if not tokenizer.has_safe_splits:
        return "", request.query
    split = first_split(request.query) if request.item_first else last_split(request.query)
    if split is None:
        return "", request.query
    head, tail = request.query[:split], request.query[split:]
    return (tail, head) if request.item_first else (head, tail)


def _finish(
    tokenizer: TextTokenizer,
    plan: _Plan,
    text_ids: list[list[int]],
    label_ids: list[list[int]],
    limits: Limits,
    facts: CheckpointFacts,
) -> TokenizedRequest | RequestError:
    """Join the encoded texts to a prompt, validate it and lay it out."""
    request, (shared, *rows) = plan.request, text_ids
    if not plan.shared:
        shared = []  # Some tokenizers give special tokens even for an empty text.
    items = rows if request.items else []
    try:
        if tokenizer.pair:
            texts = request.query, request.items
            prompt = join_pairs(tokenizer.pair, texts, shared, items, request.item_first)
        else:
            prompt = _join(tokenizer, shared, rows, request)
        labels = resolve_labels(
            request.labels,
            label_ids,
            request.label_token_ids,
            limits,
            facts,
            request.label_counts,
            len(request.items),
        )
        check_prompt(prompt, limits, facts)
    except RequestError as error:
        return error
    return TokenizedRequest(*lay_out(prompt), labels, plan.full_encode)


def _join(
    tokenizer: TextTokenizer, shared: list[int], rows: list[list[int]], request: TextRequest
) -> MultiItemPrompt:
    """Put special tokens and the shared part around the rest of each item; what all share is the query."""
    before = [*tokenizer.prefix] if request.item_first else [*tokenizer.prefix, *shared]
    after = [*shared, *tokenizer.suffix] if request.item_first else [*tokenizer.suffix]
    if after:
        rows = [ids + after for ids in rows]
    common = _common_prefix_length(rows)
    query = before + rows[0][:common]
    return MultiItemPrompt.of(query, [ids[common:] for ids in rows] if request.items else [])


def _common_prefix_length(rows: Sequence[list[int]]) -> int:
    """How many leading ids all rows share: as many as the first and the last in lexicographic order."""
    low, high = min(rows), max(rows)
    shortest = min(len(low), len(high))
    return next((index for index in range(shortest) if low[index] != high[index]), shortest)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
