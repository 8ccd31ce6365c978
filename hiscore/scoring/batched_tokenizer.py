"""The tokenizer as the batcher sees it: texts in, response tensors out."""

import time
from collections.abc import Callable, Sequence

from hiscore.arrays import Outputs
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.encode import TokenizedRequest, encode_plans
from hiscore.scoring.encoding_plan import EncodingPlan
from hiscore.scoring.layout import lay_out
from hiscore.scoring.text_reader import EncodeStats
from hiscore.serving.batched_model import WholeJobs
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer


class BatchedTokenizer:
    """`BatchedModel` of `EncodingPlan`, with costs in bytes of text to encode; answers are `Outputs`.

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

    def cost(self, job: EncodingPlan) -> int:
        return job.cost

    def plan(self) -> WholeJobs[EncodingPlan]:
        return WholeJobs(self.cost)

    def launch(self, jobs: list[EncodingPlan]) -> "EncodedBatch":
        begin = time.perf_counter()
        answers = encode_plans(self._tokenizer, jobs, self._limits, self._facts)
        return EncodedBatch(answers, time.perf_counter() - begin, self._record)

    def join(self, job: EncodingPlan, answers: Sequence[Outputs]) -> Outputs:
        return answers[0]

    def on_failure(self, error: Exception) -> None:
        """Nothing to do: there is no device to lose."""


class EncodedBatch:
    """`LaunchedBatch` of the tokenizer: its work is already done."""

    def __init__(
        self,
        answers: list[TokenizedRequest | RequestError],
        seconds: float,
        record: Callable[[EncodeStats], None],
    ) -> None:
        self._answers, self._seconds, self._record = answers, seconds, record

    def finish(self) -> list[Outputs | RequestError]:
        return [answer if isinstance(answer, RequestError) else outputs(answer) for answer in self._answers]

    def count(self) -> None:
        served = [answer for answer in self._answers if isinstance(answer, TokenizedRequest)]
        full_encodes = sum(answer.full_encode for answer in served)
        self._record(EncodeStats(len(served), full_encodes, self._seconds))


def outputs(request: TokenizedRequest) -> Outputs:
    """The response tensors, with Triton's leading batch dimension."""
    input_ids, delimiter_indices = lay_out(request.prompt)
    return {
        "input_ids": input_ids[None],
        "delimiter_indices": delimiter_indices[None],
        "label_token_ids": request.label_token_ids[None],
    }
