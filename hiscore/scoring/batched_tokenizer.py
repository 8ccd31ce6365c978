"""The tokenizer as the batcher sees it: texts in, response tensors out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hiscore.arrays import Outputs
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.encode import TokenizedRequest, encode_requests, encoded_bytes
from hiscore.scoring.encoding_plan import TextRequest
from hiscore.serving.batched_model import WholeJobs
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class EncodeStats:
    """What a batch held: requests that could be served, and those whose query was encoded with every item."""

    requests: int
    full_encodes: int


class BatchedTokenizer:
    """`BatchedModel` of `TextRequest`, with costs in bytes of text to encode; answers are `Outputs`.

    Encoding is a computation on the CPU: it gets its own thread, and requests are never split.
    """

    async_launch = False
    between = 0

    def __init__(
        self,
        tokenizer: TextTokenizer,
        limits: Limits,
        facts: CheckpointFacts,
        record: Callable[[EncodeStats], None],
    ) -> None:
        """Wrap a tokenizer; `record` is called after each batch."""
        self._tokenizer, self._limits, self._facts = tokenizer, limits, facts
        self._record = record

    def cost(self, job: TextRequest) -> int:
        return encoded_bytes(self._tokenizer, job)

    def plan(self) -> WholeJobs[TextRequest]:
        return WholeJobs(self.cost)

    def launch(self, jobs: list[TextRequest]) -> "EncodedBatch":
        return EncodedBatch(encode_requests(self._tokenizer, jobs, self._limits, self._facts), self._record)

    def join(self, job: TextRequest, answers: Sequence[Outputs]) -> Outputs:
        return answers[0]

    def on_failure(self, error: Exception) -> None:
        """Nothing to do: there is no device to lose."""


class EncodedBatch:
    """`LaunchedBatch` of the tokenizer: its work is already done."""

    def __init__(
        self, answers: list[TokenizedRequest | RequestError], record: Callable[[EncodeStats], None]
    ) -> None:
        self._answers, self._record = answers, record

    def finish(self) -> list[Outputs | RequestError]:
        return [answer if isinstance(answer, RequestError) else outputs(answer) for answer in self._answers]

    def count(self) -> None:
        served = [answer for answer in self._answers if isinstance(answer, TokenizedRequest)]
        self._record(EncodeStats(len(served), sum(answer.full_encode for answer in served)))


def outputs(request: TokenizedRequest) -> Outputs:
    """The response tensors, with Triton's leading batch dimension."""
    return {
        "input_ids": request.input_ids[None],
        "delimiter_indices": request.delimiter_indices[None],
        "label_token_ids": request.label_token_ids[None],
    }
