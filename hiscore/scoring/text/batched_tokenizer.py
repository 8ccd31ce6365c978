"""The tokenizer as a batcher sees it: texts in, token ids out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hiscore.arrays import Outputs
from hiscore.batching.batched_model import BatchLimits, BatchPlan
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.layout import lay_out, lay_out_labels
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import EncodingPlan, TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer

MAX_BATCH_BYTES = 2**20
"""Bytes of text in one batch: enough to use every core, few enough that a small request does not wait long."""
MAX_ALONE_BYTES = 2**15
"""Bytes of text that are encoded on the spot when nothing else is: a few milliseconds."""
COUNTERS = {
    "hiscore_full_encodes_total": "Calls whose whole query was encoded again with each of its items",
    "hiscore_tokenized_calls_total": "Calls turned from text into token ids",
    "hiscore_tokenizer_batches_total": "Batches of calls whose texts were encoded",
}


def batch_limits(max_queue: int) -> BatchLimits:
    return BatchLimits(MAX_BATCH_BYTES, max_queue, max_alone_cost=MAX_ALONE_BYTES)


TextJob = EncodingPlan | TextRequest
"""A large request has no plan yet: that is left to the thread that encodes it."""


class BatchedTokenizer:
    """`BatchedModel` of `TextJob`, with costs in bytes of text to encode; requests are never split."""

    async_launch = False
    between = 0

    def __init__(
        self,
        tokenizer: TextTokenizer,
        limits: Limits,
        facts: CheckpointFacts,
        record: Callable[..., None],
    ) -> None:
        """Wrap a tokenizer; `record` is called after each batch, with what it adds to `COUNTERS`."""
        self._encoder = RequestEncoder(tokenizer, limits, facts)
        self._record = record

    def job(self, request: TextRequest) -> TextJob:
        is_small = self._encoder.check(request) <= MAX_ALONE_BYTES
        return self._encoder.plan(request) if is_small else request

    def cost(self, job: TextJob) -> int:
        # A large text is a batch of its own.
        return job.cost if isinstance(job, EncodingPlan) else MAX_BATCH_BYTES

    def plan(self) -> BatchPlan[TextJob]:
        return BatchPlan(self.cost)

    def launch(self, jobs: list[TextJob]) -> "Iterator[EncodedBatch]":
        plans = [job if isinstance(job, EncodingPlan) else self._plan(job) for job in jobs]
        encoded = iter(self._encoder.encode([plan for plan in plans if isinstance(plan, EncodingPlan)]))
        answers = [plan if isinstance(plan, RequestError) else next(encoded) for plan in plans]
        yield EncodedBatch(answers, self._record)

    def join(self, job: TextJob, answers: Sequence[Any]) -> Any:
        return answers[0]

    def on_failure(self, error: Exception) -> None:
        """Nothing to do: there is no device to lose."""

    def _plan(self, request: TextRequest) -> EncodingPlan | RequestError:
        try:
            return self._encoder.plan(request)
        except RequestError as error:
            return error


class EncodedBatch:
    def __init__(self, encoded: list[TokenizedRequest | RequestError], record: Callable[..., None]) -> None:
        self._encoded, self._record = encoded, record

    def finish(self) -> list[Outputs | RequestError]:
        return [each if isinstance(each, RequestError) else outputs(each) for each in self._encoded]

    def count(self) -> None:
        served = [each for each in self._encoded if isinstance(each, TokenizedRequest)]
        self._record(
            hiscore_full_encodes_total=sum(each.full_encode for each in served),
            hiscore_tokenized_calls_total=len(served),
            hiscore_tokenizer_batches_total=1,
        )


def outputs(request: TokenizedRequest) -> Outputs:
    input_ids, delimiter_indices = lay_out(request.prompt)
    return {
        "input_ids": input_ids[None],
        "delimiter_indices": delimiter_indices[None],
        "label_token_ids": lay_out_labels(request.label_token_ids, request.label_sizes)[None],
    }
