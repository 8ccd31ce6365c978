"""The OpenAPI description: its counts and bounds are those of the checks, tried on both sides of each.

Those of completions, chat and tokens are msgspec's, which makes both of one declaration.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from hiscore.api.decisions import decide
from hiscore.checkpoint import resolve
from tests.support.api_bodies import BODIES, LABELS, MESSAGES, posted
from tests.support.tiers import first_of

LOW = {"minimum", "exclusiveMinimum", "minItems", "minLength", "minProperties"}
HIGH = {"maximum", "exclusiveMaximum", "maxItems", "maxLength", "maxProperties"}
OF_MSGSPEC = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}
Make = Callable[[Any], dict[str, Any]]


def field(base: dict[str, Any], name: str, make: Callable[[Any], Any] = lambda value: value) -> Make:
    return lambda value: {**base, name: make(value)}


def predicates(count: int) -> list[dict[str, Any]]:
    return [{"type": "predicate", "instructions": str(index)} for index in range(count)]


def choices(count: int) -> list[dict[str, Any]]:
    options = [{"value": str(index)} for index in range(count)]
    return [{"type": "choice", "instructions": "Which?", "choices": options}]


def levels(count: int) -> list[dict[str, Any]]:
    options = [{"label": str(index)} for index in range(count)]
    return [{"type": "score", "instructions": "How much?", "levels": options}]


def named(count: int) -> dict[str, Any]:
    return {str(index): {"type": "noul", "instructions": "a"} for index in range(count)}


def options(count: int) -> dict[str, Any]:
    return {"q": {"type": "choice", "criteria": {str(index): None for index in range(count)}}}


def steps(count: int) -> dict[str, Any]:
    return {"q": {"type": "score", "criteria": [str(index) for index in range(count)]}}


def texts(count: int) -> list[str]:
    return ["a"] * count


SCORE = BODIES["/v1/score"][0]
RERANK = {
    "documents": field({"query": "a"}, "documents", texts),
    **{
        name: field(BODIES["/v1/rerank"][0], name)
        for name in ("top_n", "max_tokens_per_doc", "max_tokens_per_query", "truncate_prompt_tokens")
    },
}
PAIRS: dict[str, Make] = {
    **{name: field(BODIES["/score"][0], name) for name in ("max_tokens_per_doc", "truncate_prompt_tokens")},
    **{name: field({"text_1": "a"}, name, texts) for name in ("documents", "text_2", "data_2", "items")},
}


CASES: dict[str, dict[str, Make]] = {
    "/v1/score": {
        **PAIRS,
        "query[]": field({**SCORE, "items": [[1]]}, "query", lambda number: [number]),
        "items[][]": field({**SCORE, "query": [1]}, "items", lambda number: [[number]]),
        "label_token_ids[]": field(SCORE, "label_token_ids", lambda number: [number]),
        "label_token_ids[][]": field(SCORE, "label_token_ids", lambda number: [[number]]),
        "temperature": field({**SCORE, "apply_softmax": True}, "temperature"),
        "label_counts[]": field(
            {**SCORE, "label_token_ids": LABELS}, "label_counts", lambda number: [number and 2]
        ),
        "label_lengths[]": field(
            {**SCORE, "label_token_ids": LABELS}, "label_lengths", lambda number: [number and 2]
        ),
    },
    "/score": PAIRS,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": {**RERANK, "texts": field({"query": "a"}, "texts", texts)},
    "/v1/ranking": {
        "passages": field({"query": {"text": "a"}}, "passages", lambda count: [{"text": "a"}] * count)
    },
    "/v1/decisions": {
        "input": field({"questions": predicates(1)}, "input", lambda count: MESSAGES * count),
        "questions": field({"input": "a"}, "questions", predicates),
        "questions[].choices": field({"input": "a"}, "questions", choices),
        "questions[].levels": field({"input": "a"}, "questions", levels),
    },
    "/v1/systemone": {
        "questions": field({"state": "a"}, "questions", named),
        "questions{}.criteria": field({"state": "a"}, "questions", options),
        "questions{}.criteria (list)": field({"state": "a"}, "questions", steps),
    },
}
"""By route and field: a body whose field is that large, or has that many entries."""


@pytest.fixture
def client(request: Any, make_client: Callable[..., TestClient]) -> TestClient:
    """Where a question has many options, with a tokenizer that has labels for them; it takes seconds to load."""
    if request.node.callspec.params.get("at", "").endswith((".choices", "{}.criteria")):
        return make_client(checkpoint=resolve(progress=False), prompt_labels="")
    return make_client()


def bounds(schema: Any, components: Any, at: str = "") -> Iterator[tuple[str, str, float]]:
    """Field, keyword and bound of all that a schema states. Of two with bounds in one place, lists are marked."""
    if "$ref" in schema:
        yield from bounds(components[schema["$ref"].rpartition("/")[2]], components, at)
        return
    for keyword in schema.keys() & (LOW | HIGH):
        yield at, keyword, schema[keyword]
    for name, each in schema.get("properties", {}).items():
        yield from bounds(each, components, f"{at}.{name}".lstrip("."))
    alternatives = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    alternatives += schema.get("oneOf", [])
    for each in alternatives:
        yield from bounds(each, components, at)
    if "items" in schema:
        yield from bounds(schema["items"], components, f"{at}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from bounds(schema["additionalProperties"], components, f"{at}{{}}")


def stated(client: TestClient, route: str) -> dict[str, list[tuple[str, float]]]:
    """Keywords and bounds by field; lists beside something else that has bounds are fields of their own."""
    description = client.get("/openapi.json").json()
    schema = description["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found: dict[str, set[tuple[str, float]]] = {}
    for at, keyword, bound in bounds(schema, description["components"]["schemas"]):
        marked = f"{at} (list)" if keyword.endswith("Items") and f"{at} (list)" in CASES[route] else at
        found.setdefault(marked, set()).add((keyword, bound))
    return {at: sorted(each) for at, each in found.items()}


def is_refused(client: TestClient, route: str, body: dict[str, Any]) -> bool:
    reply = client.post(route, content=json.dumps(body), headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400), reply.text
    return bool(reply.status_code == 400)


def check_field(client: TestClient, route: str, at: str) -> None:
    make = CASES[route][at]
    for keyword, bound in stated(client, route)[at]:
        step = 1e-3 if at == "temperature" else 1
        inward, outward = (step, -step) if keyword in LOW else (-step, step)
        strict = keyword.startswith("exclusive")
        allowed, refused = (bound + inward, bound) if strict else (bound, bound + outward)
        assert not is_refused(client, route, make(allowed)), f"{at} of {allowed} ({keyword})"
        if refused >= 0 or keyword in ("minimum", "maximum"):
            assert is_refused(client, route, make(refused)), f"{at} of {refused} ({keyword})"


FIELDS = [(route, at) for route, fields in CASES.items() for at in fields]
# Thousands of options: seconds for each.
MANY = [each for each in FIELDS if each[1].endswith((".choices", "{}.criteria"))]


@pytest.mark.parametrize(
    ("route", "at"),
    [
        *first_of(*(each for each in FIELDS if each not in MANY), others=pytest.mark.slow),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in MANY),
    ],
)
def test_a_bound_is_where_the_checks_have_it(client: TestClient, route: str, at: str) -> None:
    check_field(client, route, at)


@pytest.mark.parametrize("route", CASES)
def test_every_bound_is_tried(client: TestClient, route: str) -> None:
    assert stated(client, route).keys() == CASES[route].keys()
    assert set(posted(client.get("/openapi.json").json())) == CASES.keys() | OF_MSGSPEC


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("MAX_QUESTIONS", "questions"),
        ("MAX_OPTIONS", "questions[].choices"),
        ("MAX_LEVELS", "questions[].levels"),
    ],
)
@pytest.mark.exhaustive
def test_control_a_check_that_drifts_is_found(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, name: str, at: str
) -> None:
    monkeypatch.setattr(decide, name, getattr(decide, name) - 1)
    with pytest.raises(AssertionError, match=r"of \d+ \(maxItems\)"):
        check_field(client, "/v1/decisions", at)
