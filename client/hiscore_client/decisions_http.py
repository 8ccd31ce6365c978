"""Calls of the HTTP API's `/v1/decisions`."""

import json
import urllib.error
import urllib.request
from typing import Any

from hiscore_client.errors import HiscoreError, InvalidRequest, Overloaded, ServerFault, ServerUnreachable

TIMEOUT_S = 600.0


def decide(url: str, request: dict[str, Any], api_key: str | None = None) -> dict[str, Any]:
    """Answer the questions of a request.

    Args:
        url: Where the API is, such as ``http://localhost:8080``.
        request: As `/v1/decisions` takes it.
        api_key: If the API asks for one.

    Raises:
        HiscoreError: It cannot be answered.
    """
    headers = {"content-type": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        call = urllib.request.Request(
            url.rstrip("/") + "/v1/decisions", json.dumps(request).encode(), headers
        )
        with urllib.request.urlopen(call, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        with error:
            raise _failure(error.code, error.read()) from None
    except (urllib.error.URLError, OSError) as error:
        raise ServerUnreachable(f"no answer from '{url}': {getattr(error, 'reason', error)}") from None
    except ValueError as error:
        raise InvalidRequest(f"'{url}' cannot be called: {error}") from None


def _failure(status: int, body: bytes) -> HiscoreError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the API answers with status {status}"
    if status == 429:
        return Overloaded(message)
    return InvalidRequest(message) if status < 500 else ServerFault(message)
