"""One call, cut into chunks, each a request to the server."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tritonclient.grpc import InferInput

from hiscore_client.errors import InvalidRequest
from hiscore_client.results import ScoreResult, merge, read_result
from hiscore_client.retry import Deadline, RetryPolicy, attempts
from hiscore_client.steps import Ask, Steps


@dataclass(frozen=True)
class Options:
    """How a call is to be scored and sent; what is at its default does not go onto the wire."""

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    priority: int = 0

    def parameters(self) -> dict[str, bool | float]:
        """The request parameters.

        Raises:
            InvalidRequest: a temperature that Triton cannot pass on, a negative priority.
        """
        # NaN has no form in the JSON in which Triton hands parameters to a model.
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequest(f"'temperature' must be finite and greater than 0, not {self.temperature}")
        if self.priority < 0:
            raise InvalidRequest(f"'priority' must be at least 0, not {self.priority}")
        given: dict[str, bool | float] = {}
        if self.apply_softmax:
            given["apply_softmax"] = True
        if self.temperature != 1.0:
            given["temperature"] = float(self.temperature)
        if self.item_first:
            given["item_first"] = True
        return given


@dataclass(frozen=True)
class Call:
    """One call, cut into chunks: each is one request with its own tries, all share one deadline."""

    model: str
    chunks: list[slice]
    inputs: Callable[[slice], list[InferInput]]
    labels: int | None
    options: Options
    deadline: Deadline
    request_id: str
    url: str
    retry: RetryPolicy
    headers: Mapping[str, str]

    @property
    def items(self) -> int:
        """How many items the whole call has."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)

    def steps(self, place: int) -> Steps[ScoreResult]:
        """The steps that get the answer to one chunk; its inputs are built when the first is taken."""
        chunk = self.chunks[place]
        arguments = {
            "model_name": self.model,
            "inputs": self.inputs(chunk),
            "request_id": self.request_id if len(self.chunks) == 1 else f"{self.request_id}/{place}",
            "priority": self.options.priority,
            "parameters": self.options.parameters(),
            "headers": self.headers or None,
        }

        def ask(remaining: float) -> Ask:
            if math.isinf(remaining):
                return Ask("infer", arguments)
            # Seconds for gRPC; microseconds for Triton's queue, which drops a call that nobody waits for.
            microseconds = max(1, int(remaining * 1e6))
            return Ask("infer", {**arguments, "client_timeout": remaining, "timeout": microseconds})

        answer = yield from attempts(ask, self.deadline, self.retry, self.url, self.request_id)
        return read_result(answer, chunk.stop - chunk.start, self.labels, self.request_id)

    def merge(self, parts: Sequence[ScoreResult]) -> ScoreResult:
        """The whole call's result from the chunks' results, in order."""
        return merge(parts, self.request_id)
