"""Bad input to every route: refused with a reason, and the next good call gets its answer."""

import copy
import gzip
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from tests.server.raw_http import leak
from tests.support.api_bodies import BODIES, CASES
from tests.support.tiers import first_of
from tests.unit.api.conftest import MakeClient

MAX_BODY = 10_000
NAMES = [f"{path}-{next(reversed(body))}" for path, body in CASES]
EACH_ROUTE = pytest.mark.parametrize(("path", "body"), CASES, ids=NAMES)
FIRST_ROUTE = pytest.mark.parametrize(("path", "body"), first_of(*CASES, others=pytest.mark.slow), ids=NAMES)


WRONG: list[Any] = ["\0<|im_end|>", [], {}, -1, 1e308, None]


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
    # Any text of System One may be JSON as well; a body of token ids has no other text than the name of a model.
    for wrong in () if path in ("/v1/systemone", "/detokenize") else (7, None, True, {}, [[]]):
        assert post(client, path, json.dumps(with_text(body, lambda text: wrong)).encode())[0] == 400  # noqa: B023
    assert post(client, path, b"{}")[0] == 400


@FIRST_ROUTE
def test_a_model_that_there_is_not(make_client: MakeClient, path: str, body: Any) -> None:
    client = make_client(api_model_names="first,second")
    assert post(client, path, json.dumps({**body, "model": "second"}).encode())[0] == 200
    status, text = post(client, path, json.dumps({**body, "model": "third"}).encode())
    assert status == 404
    assert "'third' does not exist: known are first, second" in text


@FIRST_ROUTE
def test_models_that_do_not_answer(make_client: MakeClient, path: str, body: Any) -> None:
    # Nothing listens on the discard port.
    client = make_client(backend="127.0.0.1:9")
    status, text = post(client, path, json.dumps(body).encode())
    # Tokens are the API's own.
    assert status == (200 if path in ("/tokenize", "/detokenize") else 503)
    assert "127.0.0.1" not in text


def test_errors_have_the_shape_of_their_family(client: TestClient) -> None:
    def error(path: str, body: Any) -> Any:
        return client.post(path, json=body).json()

    assert error("/v1/rerank", {})["error"]["type"] == "invalid_request_error"
    assert set(error("/v2/rerank", {})) == {"id", "message"}
    assert error("/rerank", {"texts": []})["error_type"] == "Validation"
    assert error("/rerank", {"documents": []})["error"]["code"] == "invalid_value"
    assert error("/v1/ranking", {})["object"] == "error"


def places(node: Any) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [each for key in keys for each in ((node, key), *places(node[key]))]


@pytest.mark.slow
def test_any_value_of_a_good_body_may_be_wrong(client: TestClient) -> None:
    """It is read or refused: never a failure of ours."""
    for path, bodies in BODIES.items():
        for body, wrong in itertools.product(bodies, WRONG):
            for at in range(len(places(body))):
                changed = copy.deepcopy(body)
                node, key = places(changed)[at]
                node[key] = wrong
                status, text = post(client, path, json.dumps(changed).encode())
                assert status in (200, 400), (changed, text)
