"""Errors: the status of each failure of the models, and each family's shape."""

import pytest

from hiscore.api.http.errors import (
    CLIENT_CLOSED,
    ApiError,
    ErrorShape,
    bad_request,
    cohere_error,
    from_models,
    nim_error,
    openai_error,
    tei_error,
)
from hiscore.api.models import PROMPT
from hiscore_client import (
    Cancelled,
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    ServerUnreachable,
)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (InvalidRequest, 400, "invalid_value"),
        (Overloaded, 429, "overloaded"),
        (DeadlineExceeded, 504, "deadline_exceeded"),
        (Cancelled, CLIENT_CLOSED, "cancelled"),
    ],
)
def test_a_failure_of_the_models_keeps_its_message(kind: type[HiscoreError], status: int, code: str) -> None:
    error = from_models(kind("'items' has 7"))
    assert (error.status, error.code) == (status, code)
    assert "'items' has 7" in error.message


@pytest.mark.parametrize(
    ("said", "message", "param"),
    [
        ("in ensemble 'score', 'labels' holds 2", "'labels' holds 2", "labels"),
        ("parameter 'min_tokens' must be less", "parameter 'min_tokens' must be less", "min_tokens"),
        ("parameters 'regex' and 'ebnf'", "parameters 'regex' and 'ebnf'", "regex"),
        ("'text_input' is empty", "'prompt' is empty", "prompt"),
        ("label 'x' is 2 tokens", "label 'x' is 2 tokens", None),
    ],
)
def test_what_the_models_refuse_is_said_in_the_words_of_the_routes(
    said: str, message: str, param: str | None
) -> None:
    error = from_models(InvalidRequest(said), PROMPT)
    assert (error.status, error.message, error.param) == (400, message, param)


def test_a_prompt_beyond_the_context_is_known_by_its_code() -> None:
    error = from_models(InvalidRequest("the prompt has 9 tokens: at most 8 (MAX_CONTEXT)"))
    assert error.code == "context_length_exceeded"
    # Clients look for these words in the message, not for the code.
    message = openai_error(error, "id")["error"]["message"]
    assert "This model's maximum context length is" in message
    assert "context_length_exceeded" in message


@pytest.mark.parametrize("message", ["'MAX_CONTEXT' is no field", "at most 8 in one call (MAX_CALL_TOKENS)"])
def test_control_other_errors_are_not_taken_for_it(message: str) -> None:
    error = from_models(InvalidRequest(message))
    assert error.code == "invalid_value"
    assert openai_error(error, "id")["error"]["message"] == message


@pytest.mark.parametrize(("kind", "status"), [(ServerUnreachable, 503), (HiscoreError, 500)])
def test_what_is_not_the_callers_business_is_not_told(kind: type[HiscoreError], status: int) -> None:
    error = from_models(kind("10.0.0.7:8001 /opt/models"))
    assert error.status == status
    assert "10.0.0.7" not in error.message
    assert "/opt" not in error.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
    ],
)
def test_openais_types(status: int, kind: str) -> None:
    assert openai_error(ApiError(status, "m"), "id")["error"]["type"] == kind


SAID = {"message": "'a' is 0", "type": "invalid_request_error", "request_id": "id"}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (openai_error, {"error": {**SAID, "param": "a", "code": "invalid_value"}}),
        (cohere_error, {"id": "id", "message": "'a' is 0"}),
        (tei_error, {"error": "'a' is 0", "error_type": "Validation", "request_id": "id"}),
        (nim_error, {**SAID, "object": "error", "detail": "'a' is 0"}),
    ],
)
def test_shapes(shape: ErrorShape, expected: object) -> None:
    assert shape(bad_request("'a' is 0", "a"), "id") == expected


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "Overloaded"), (503, "Unhealthy"), (504, "Backend"), (500, "Backend")]
)
def test_teis_types(status: int, kind: str) -> None:
    assert tei_error(ApiError(status, "m"), "id")["error_type"] == kind
