"""Calls of the scorer by text: in its own process, since each hop to another one takes a millisecond."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.encode import TokenizedRequest, encode_plans, plan_request
from hiscore.scoring.encoding_plan import EncodingPlan, TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer

COUNTERS = {
    "hiscore_encode_seconds_total": "Seconds spent on encoding texts",
    "hiscore_full_encodes_total": "Calls whose whole query was encoded again with each of its items",
    "hiscore_tokenized_calls_total": "Calls turned from text into token ids",
}
LARGE_BYTES = 2**16
"""A core encodes about a megabyte per second: less than this delays other requests only briefly."""


@dataclass(frozen=True)
class EncodeStats:
    """What was encoded: requests, those of them whose query was encoded with every item, and how long it took."""

    requests: int
    full_encodes: int
    seconds: float

    @property
    def counts(self) -> dict[str, float]:
        """What `COUNTERS` rise by."""
        return {
            "hiscore_encode_seconds_total": self.seconds,
            "hiscore_full_encodes_total": self.full_encodes,
            "hiscore_tokenized_calls_total": self.requests,
        }


@dataclass(frozen=True)
class TextReader:
    """Turns requests in text into validated token ids.

    Attributes:
        tokenizer: The checkpoint's.
        limits: Bounds of one call.
        facts: Sizes to validate against.
        record: Called after each request that was encoded.
    """

    tokenizer: TextTokenizer
    limits: Limits
    facts: CheckpointFacts
    record: Callable[[EncodeStats], None]

    def plan(self, request: TextRequest) -> EncodingPlan:
        """How a request will be encoded; errors as for `plan_request`."""
        return plan_request(self.tokenizer, request, self.limits, self.facts)

    def encode(self, plan: EncodingPlan) -> TokenizedRequest:
        """Encode the texts of a request.

        Raises:
            RequestError: It cannot be served.
        """
        begin = time.perf_counter()
        (answer,) = encode_plans(self.tokenizer, [plan], self.limits, self.facts)
        if isinstance(answer, RequestError):
            raise answer
        self.record(EncodeStats(1, answer.full_encode, time.perf_counter() - begin))
        return answer
