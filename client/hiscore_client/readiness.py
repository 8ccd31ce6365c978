"""Waiting until a server is ready, and checking that its models are hiscore's."""

from collections.abc import Sequence
from typing import Any

from tritonclient.utils import InferenceServerException

from hiscore_client.deadline import Deadline
from hiscore_client.errors import DeadlineExceeded, ServerFault, ServerUnreachable, status_of
from hiscore_client.sans_io import Operation, Rpc, Sleep

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# Seconds for one request, so that a host that drops packets does not use up the whole wait.
REQUEST_TIMEOUT = 5.0

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


def wait_ready(models: Sequence[str], deadline: Deadline, url: str) -> Operation[None]:
    """Poll until all models are ready.

    Args:
        deadline: When to give up.

    Raises:
        ServerUnreachable: Nothing answered up to the deadline, or the server that had answered went away.
        DeadlineExceeded: The server answered, but a model was not ready in time.
        ServerFault: A model of that name is ready, but is not hiscore's.
    """
    pause = FIRST_PAUSE
    answered = False
    while True:
        try:
            for model in models:
                ready = yield _poll("is_model_ready", model, deadline)
                answered = True
                if not ready:
                    break
            else:
                for model in models:
                    metadata = yield _poll("get_model_metadata", model, deadline)
                    check_metadata(model, metadata)
                return
            reason = f"model '{model}' is not ready"
        except InferenceServerException as error:
            reason = str(error.message())
            if status_of(error) != "DEADLINE_EXCEEDED":
                answered = status_of(error) != "UNAVAILABLE"
            elif answered:
                # A server that has answered is reachable: it is busy, or the last request had a millisecond left.
                reason = f"model '{model}' is not ready"
        if deadline.remaining() <= pause:
            kind = DeadlineExceeded if answered else ServerUnreachable
            raise kind(f"{url} is not ready after {deadline.timeout} s: {reason}")
        yield Sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


def check_metadata(model: str, metadata: Any) -> None:
    """Check that a model has the tensors that the SDK sends and reads; other models pass.

    Raises:
        ServerFault: A tensor is missing.
    """
    actual = {(tensor.name, tensor.datatype) for tensor in (*metadata.inputs, *metadata.outputs)}
    missing = TENSORS.get(model, set()) - actual
    if missing:
        name, datatype = min(missing)
        raise ServerFault(
            f"the server's model '{model}' has no {datatype} tensor '{name}': it is not hiscore's"
        )


def _poll(method: str, model: str, deadline: Deadline) -> Rpc:
    # A timeout of zero would fail before the request is even sent.
    timeout = min(REQUEST_TIMEOUT, max(deadline.remaining(), 0.001))
    return Rpc(method, {"model_name": model, "client_timeout": timeout})
