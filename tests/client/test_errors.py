import pickle

import pytest
from tritonclient.utils import InferenceServerException

from hiscore_client import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServerFault,
)
from hiscore_client.errors import from_grpc


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("INVALID_ARGUMENT", "'items' holds 20000", InvalidRequest),
        ("UNAVAILABLE", "in ensemble 'score', Exceeds maximum queue size", Overloaded),
        ("UNAVAILABLE", "in ensemble 'score', Request timeout expired", DeadlineExceeded),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", DeadlineExceeded),
        ("CANCELLED", "Locally cancelled by application!", Cancelled),
        ("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (10 vs. 5)", InvalidRequest),
        ("RESOURCE_EXHAUSTED", "rate limit", Overloaded),
        ("INTERNAL", "internal error", ServerFault),
        ("NOT_FOUND", "unknown model", ServerFault),
    ],
)
def test_each_grpc_failure_has_its_exception(status: str, message: str, kind: type[Exception]) -> None:
    error = from_grpc(InferenceServerException(message, f"StatusCode.{status}"))
    assert type(error) is kind
    assert str(error) == message


def test_errors_keep_their_request_id_through_pickle() -> None:
    copy = pickle.loads(pickle.dumps(Overloaded("full", "id-1")))
    assert (type(copy), str(copy), copy.request_id) == (Overloaded, "full", "id-1")
