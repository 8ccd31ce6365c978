"""Bad input to every route: refused with a reason, and the next good call gets its answer."""

import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from tests.server.raw_http import leak
from tests.support.api_bodies import CASES
from tests.unit.api.conftest import MakeClient

MAX_BODY = 10_000
EACH_ROUTE = pytest.mark.parametrize(
    ("path", "body"), CASES, ids=[f"{path}-{next(reversed(body))}" for path, body in CASES]
)


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client(max_body_bytes=MAX_BODY)


def post(client: TestClient, path: str, content: bytes, **headers: str) -> tuple[int, str]:
    given = {"content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    reply = client.post(path, content=content, headers=given)
    assert leak(reply.text) == ""
    assert reply.headers["x-request-id"]
    return reply.status_code, reply.text


def with_text(body: Any, change: Callable[[str], Any]) -> Any:
    changed = copy.deepcopy(body)

    def visit(node: Any) -> bool:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, str) and key not in ("type", "role"):
                node[key] = change(value)
                return True
            if isinstance(value, dict | list) and visit(value):
                return True
        return False

    assert visit(changed)
    return changed


@EACH_ROUTE
def test_a_good_body_is_answered(client: TestClient, path: str, body: Any) -> None:
    content = json.dumps(body).encode()
    plain = post(client, path, content)
    assert plain[0] == 200
    assert post(client, path, gzip.compress(content), content_encoding="gzip")[0] == 200
    assert post(client, path, zstandard.compress(content), content_encoding="zstd")[0] == 200
    assert post(client, path, json.dumps({**body, "user": "me", "model": "any"}).encode())[0] == 200


@EACH_ROUTE
def test_what_is_no_json_is_refused(client: TestClient, path: str, body: Any) -> None:
    good = json.dumps(body).encode()
    deep = b"[" * 4_000 + b"]" * 4_000
    surrogate = json.dumps(with_text(body, lambda text: "MARK")).encode().replace(b"MARK", rb"\ud800")
    half = json.dumps(with_text(body, lambda text: "MARK")).encode().replace(b"MARK", b"\xed\xa0\x80")
    nan = json.dumps({**body, "metadata": float("nan")}).encode()
    nested = json.dumps({**body, "metadata": None}).encode().replace(b"null", deep)
    for content in (b"", b"{", good[:-1], good + good, b"\xff" + good, surrogate, half, nan):
        status, text = post(client, path, content)
        assert (status, "JSON" in text) == (400, True), content
    for content in (b"null", b"[]", b"7", b'"text"', deep):
        assert post(client, path, content)[0] == 400
    # Nested deeply where anything may be: read or refused, but survived.
    assert post(client, path, nested)[0] in (200, 400)
    assert post(client, path, good)[0] == 200


@EACH_ROUTE
def test_what_is_no_such_request_is_refused_by_name(client: TestClient, path: str, body: Any) -> None:
    for name, value in ((f"{next(iter(body))}s_", 1), ("lora", "x"), ("", 0), ("__class__", {})):
        status, text = post(client, path, json.dumps({**body, name: value}).encode())
        assert status == 400
        assert f"'{name}' is not a field" in text
    # Any text of System One may be JSON as well.
    for wrong in () if path == "/v1/systemone" else (7, None, True, {}, [[]]):
        assert post(client, path, json.dumps(with_text(body, lambda text: wrong)).encode())[0] == 400  # noqa: B023
    assert post(client, path, b"{}")[0] == 400


@EACH_ROUTE
def test_a_model_that_there_is_not(make_client: MakeClient, path: str, body: Any) -> None:
    client = make_client(api_model_names="first,second")
    assert post(client, path, json.dumps({**body, "model": "second"}).encode())[0] == 200
    status, text = post(client, path, json.dumps({**body, "model": "third"}).encode())
    assert status == 404
    assert "'third' does not exist: known are first, second" in text


@EACH_ROUTE
def test_models_that_do_not_answer(make_client: MakeClient, path: str, body: Any) -> None:
    # Nothing listens on the discard port.
    client = make_client(backend="127.0.0.1:9")
    status, text = post(client, path, json.dumps(body).encode())
    assert status == 503
    assert "127.0.0.1" not in text
