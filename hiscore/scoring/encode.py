"""Calls in text to calls in token space, exact to the token and with the query encoded once.

Truth is what a user gets who sends one item at a time: ``tokenizer(query + item)``, special tokens included.
The longest common token prefix of those encodings becomes the call's query, the rest are the items' own tokens.
Where `cuts` knows a safe place in the query, only what lies beyond it is encoded with every item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.labels import check_label_inputs, resolve_labels
from hiscore.scoring.layout import lay_out
from hiscore.scoring.request import MultiItemPrompt
from hiscore.scoring.validation import check_prompt
from hiscore.settings import Limits
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.safe_splits import first_cut, last_cut
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TextRequest:
    """One call as it was sent; ``item_first`` joins ``item + query``, else ``query + item``."""

    query: str
    items: Sequence[str]
    labels: Sequence[str] | None = None
    label_token_ids: Int32 | None = None
    item_first: bool = False


@dataclass(frozen=True)
class TokenizedRequest:
    """One call in token space, checked; int32 arrays of shape [tokens], [items + 1] and [labels].

    full_encode: the whole query had to be encoded with every one of several items.
    """

    input_ids: Int32
    delimiter_indices: Int32
    label_token_ids: Int32
    full_encode: bool


@dataclass(frozen=True)
class _Plan:
    """What of a call is encoded: the shared part of the query once, the rest of it (``own``) with every item."""

    call: TextRequest
    shared: str
    own: str

    @property
    def texts(self) -> list[str]:
        """The shared part, then one text for every item; for a call without items the query alone."""
        if not self.call.items:
            return ["", self.call.query]
        if self.call.item_first:
            return [self.shared, *(item + self.own for item in self.call.items)]
        return [self.shared, *(self.own + item for item in self.call.items)]

    @property
    def labels(self) -> Sequence[str]:
        return self.call.labels or ()

    @property
    def full_encode(self) -> bool:
        return not self.shared and bool(self.own) and len(self.call.items) > 1


def encode_calls(
    tokenizer: TextTokenizer, calls: Sequence[TextRequest], limits: Limits, facts: CheckpointFacts
) -> list[TokenizedRequest | RequestError]:
    """Encode the texts of all calls together; a call that cannot be served gives its own error instead.

    Strings must be valid Unicode (no lone surrogates).
    """
    try:
        return _encode(tokenizer, calls, limits, facts)
    except Panic:
        if len(calls) == 1:
            return [RequestError("the tokenizer cannot encode 'query', 'items' and 'labels' of this call")]
    # It does not say on which text.
    return [answer for call in calls for answer in encode_calls(tokenizer, [call], limits, facts)]


def _encode(
    tokenizer: TextTokenizer, calls: Sequence[TextRequest], limits: Limits, facts: CheckpointFacts
) -> list[TokenizedRequest | RequestError]:
    plans = [_plan(tokenizer, call, limits, facts) for call in calls]
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
    tokenizer: TextTokenizer, call: TextRequest, limits: Limits, facts: CheckpointFacts
) -> _Plan | RequestError:
    """Check what can be checked before encoding, then find what of the query is encoded once."""
    try:
        if len(call.items) > limits.max_items:
            raise RequestError(
                f"'items' holds {len(call.items)} items: at most {limits.max_items} in one call"
            )
        check_label_inputs(call.labels, call.label_token_ids, limits, facts)
        size = _size([call.query, *call.items, *(call.labels or ())])
        if size > limits.max_text_bytes:
            raise RequestError(
                f"'query', 'items' and 'labels' hold {size} bytes: at most {limits.max_text_bytes} in one call"
            )
        plan = _Plan(call, *_divide(tokenizer, call))
        # A query that cannot be shared costs its length once per item: the bound is on work, not on input.
        work = _size([plan.own]) * len(call.items)
        if work > limits.max_text_bytes:
            raise RequestError(
                f"'query' must be tokenised anew with each of {len(call.items)} items, {work} bytes in all: "
                f"at most {limits.max_text_bytes} in one call. Send fewer items, or put a space into the query"
            )
    except RequestError as error:
        return error
    return plan


def _divide(tokenizer: TextTokenizer, call: TextRequest) -> tuple[str, str]:
    """The part of the query to encode once, and the part beside the items to encode with each of them."""
    if not tokenizer.safe_cuts:
        return "", call.query
    cut = first_cut(call.query) if call.item_first else last_cut(call.query)
    if cut is None:
        return "", call.query
    head, tail = call.query[:cut], call.query[cut:]
    return (tail, head) if call.item_first else (head, tail)


def _finish(
    tokenizer: TextTokenizer,
    plan: _Plan,
    text_ids: list[list[int]],
    label_ids: list[list[int]],
    limits: Limits,
    facts: CheckpointFacts,
) -> TokenizedRequest | RequestError:
    """Put encodings together into a checked layout."""
    call, (shared, *own) = plan.call, text_ids
    if not plan.shared:
        shared = []  # A tokenizer that does not wrap gives special tokens even for an empty text.
    before = [*tokenizer.prefix] if call.item_first else [*tokenizer.prefix, *shared]
    after = [*shared, *tokenizer.suffix] if call.item_first else [*tokenizer.suffix]
    rests = [ids + after for ids in own] if after else own
    common = _common_prefix_length(rests)
    query = before + rests[0][:common]
    items = [rest[common:] for rest in rests] if call.items else []
    prompt = MultiItemPrompt.of(query, items)
    try:
        labels = resolve_labels(call.labels, label_ids, call.label_token_ids, limits, facts)
        check_prompt(prompt, limits, facts)
    except RequestError as error:
        return error
    return TokenizedRequest(*lay_out(prompt), labels, plan.full_encode)


def _common_prefix_length(rows: Sequence[list[int]]) -> int:
    """How many leading ids all rows share: what the first and the last in dictionary order share."""
    low, high = min(rows), max(rows)
    shortest = min(len(low), len(high))
    return next((place for place in range(shortest) if low[place] != high[place]), shortest)


def _size(strings: Sequence[str]) -> int:
    """Bytes of UTF-8."""
    return sum(len(string.encode()) for string in strings)
