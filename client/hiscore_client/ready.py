"""Waiting for a server, and checking that it is the one we speak to."""

import math
from collections.abc import Sequence
from typing import Any

from tritonclient.utils import InferenceServerException

from hiscore_client.errors import DeadlineExceeded, HiscoreError, ServerFault, ServerUnreachable, status_of
from hiscore_client.retry import Deadline
from hiscore_client.steps import Ask, Pause, Steps

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# Seconds for one question, so that a host that swallows packets does not use up the whole wait.
QUESTION_TIMEOUT = 5.0

# What the SDK relies on: (name, datatype) of tensors.
TENSORS = {
    "score": {("query", "BYTES"), ("items", "BYTES"), ("scores", "FP32"), ("usage", "INT32")},
    "scorer": {
        ("input_ids", "INT32"),
        ("delimiter_indices", "INT32"),
        ("label_token_ids", "INT32"),
        ("scores", "FP32"),
        ("usage", "INT32"),
    },
    "decode": {
        ("input_ids", "INT32"),
        ("text_input", "BYTES"),
        ("output_ids", "INT32"),
        ("text_output", "BYTES"),
        ("finish_reason", "BYTES"),
    },
}


def wait_ready(models: Sequence[str], deadline: Deadline, url: str) -> Steps[None]:
    """Ask until all of the models are ready.

    Raises:
        ServerUnreachable: nothing answered up to the deadline.
        DeadlineExceeded: a server answers, but a model is not ready.
        ServerFault: a model of that name is ready, but is not hiscore's.
    """
    pause = FIRST_PAUSE
    while True:
        kind: type[HiscoreError] = DeadlineExceeded
        try:
            missing = yield from _first_not_ready(models, deadline)
            if missing is None:
                for model in models:
                    metadata = yield _question("get_model_metadata", model, deadline)
                    check_metadata(model, metadata)
                return
            reason = f"model '{missing}' is not ready"
        except InferenceServerException as error:
            if status_of(error) in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
                kind = ServerUnreachable
            reason = str(error.message())
        if deadline.remaining() <= pause:
            raise kind(f"{url} is not ready after {deadline.timeout} s: {reason}")
        yield Pause(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


def check_metadata(model: str, metadata: Any) -> None:
    """Check that a model has the tensors that the SDK sends and reads; models it does not know pass."""
    found = {(tensor.name, tensor.datatype) for tensor in (*metadata.inputs, *metadata.outputs)}
    missing = TENSORS.get(model, set()) - found
    if missing:
        name, datatype = min(missing)
        raise ServerFault(
            f"the server's model '{model}' has no {datatype} tensor '{name}': it is not hiscore's"
        )


def _first_not_ready(models: Sequence[str], deadline: Deadline) -> Steps[str | None]:
    for model in models:
        if not (yield _question("is_model_ready", model, deadline)):
            return model
    return None


def _question(method: str, model: str, deadline: Deadline) -> Ask:
    # A timeout of zero would fail before the question is even sent.
    timeout = min(QUESTION_TIMEOUT, max(deadline.remaining(), 0.001))
    return Ask(method, {"model_name": model, "client_timeout": timeout if math.isfinite(timeout) else None})
