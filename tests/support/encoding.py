"""Requests in text to requests in token ids, as the `tokenizer` model does it."""

from collections.abc import Sequence

import numpy as np

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.prompts.truncation import CutPrompts
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import EncodingPlan, TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer


def encode_requests(
    tokenizer: TextTokenizer, requests: Sequence[TextRequest], limits: Limits, facts: CheckpointFacts
) -> list[TokenizedRequest | RequestError]:
    """Plan each request, then encode all that can be served together; one answer per request."""

    encoder = RequestEncoder(tokenizer, limits, facts)

    def plan(request: TextRequest) -> EncodingPlan | RequestError:
        try:
            encoder.check(request)
            return encoder.plan(request)
        except RequestError as error:
            return error

    plans = [plan(request) for request in requests]
    good = [each for each in plans if isinstance(each, EncodingPlan)]
    encoded = iter(encoder.encode(good))
    return [each if isinstance(each, RequestError) else next(encoded) for each in plans]


def limits_of(max_text_bytes: int, **others: int) -> Limits:
    """Limits with fewer bytes of text than follow from the tokens of a call."""

    class OfTests(Limits):
        @property
        def max_text_bytes(self) -> int:
            return max_text_bytes

    return OfTests(**others)


def sequences(prompt: MultiItemPrompt) -> list[list[int]]:
    """The tokens of each item, behind those of the query."""
    query, *items = np.split(prompt.tokens, prompt.query_length + np.cumsum([0, *prompt.item_lengths]))
    return [[*query.tolist(), *item.tolist()] for item in items[:-1]]


def ids_of_pairs(pairs: CutPrompts) -> list[list[int]]:
    """Whole prompts, in the order of the request."""
    found = {
        row: [*each.query, *item]
        for of, each in pairs.prompts
        for row, item in zip(of, each.items, strict=True)
    }
    return [found[row] for row in range(len(pairs.cut))]
