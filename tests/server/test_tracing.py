"""OpenTelemetry traces as a collector gets them: a call is one trace across the ensemble, inside the caller's."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hiscore.launcher import Server
from hiscore.settings import ServeSettings
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.api import api_of, call
from tests.server.conftest import settings_of
from tests.support.http_server import Asked, answering

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HTTP_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
API_TRACE = "1234567890abcdef1234567890abcdef"
QUERY, ITEMS, LABELS = "a query that nobody else sees", ["firstitem", "seconditem"], [1, 2]
SEVERAL_TOKENS = "a label of several tokens"

Span = dict[str, Any]


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a collector of Triton's exports, and all that it got."""
    got: list[bytes] = []

    def keep(asked: Asked) -> tuple[int, str]:
        got.append(asked.body)
        return (200 if asked.path == "/v1/traces" else 404), ""

    with answering(keep) as address:
        yield f"http://{address}/v1/traces", got


@pytest.fixture(scope="module")
def exported(tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a server has exported by its end, of five calls, four of which belong to traces of their callers."""
    log = tmp_path_factory.mktemp("tracing") / "server.log"
    with collector() as (url, got):
        settings = settings_of(
            tiny_lm,
            models="score,tokenizer,scorer",
            query_cache_bytes=0,
            canary_seconds=0,
            trace_url=url,
            trace_rate=1_000_000,  # none but those that ask for it
        )
        with Server(settings, log) as server:
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            with ScoreClient(server.grpc_url, headers=parent) as client:
                client.score(QUERY, ITEMS, label_token_ids=LABELS, request_id="mine")
                refuse(client)
            with ScoreClient(server.grpc_url) as client:
                client.score(QUERY, ITEMS, label_token_ids=LABELS, request_id="other")
            body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
            request = urllib.request.Request(
                f"{server.http_url}/v2/models/score/generate",
                json.dumps(body).encode(),
                {"traceparent": f"00-{HTTP_TRACE}-{PARENT}-01"},
            )
            with urllib.request.urlopen(request) as response:
                assert len(json.load(response)["scores"]) == len(ITEMS) * len(LABELS)
            with api_of(server, log.with_name("api.log"), labels=("a", "b")) as api:
                traced = {"traceparent": f"00-{API_TRACE}-{PARENT}-01", "x_request_id": "by-api"}
                assert call(api, "/v1/score", body, **traced).status == 200
                assert call(api, "/v1/score", body, x_request_id="by-api-untraced").status == 200
            # On a busy machine Triton 2.51 at times loses spans that end just before it stops.
            with ScoreClient(server.grpc_url, headers=parent) as client:
                for _ in range(5):
                    if wait_for_export(got, "refused"):
                        break
                    refuse(client)
    return b"\n".join(got)


def refuse(client: ScoreClient) -> None:
    with pytest.raises(InvalidRequest, match="are the same tokens"):
        client.score(QUERY, ITEMS, labels=[SEVERAL_TOKENS, SEVERAL_TOKENS], request_id="refused")


def wait_for_export(got: list[bytes], request_id: str, seconds: float = 12.0) -> bool:
    """Whether the spans of a call's ensemble and of its step arrive; Triton exports every 5 seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(of_request(parse(b"\n".join(got)), request_id)) >= 2:
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def spans(exported: bytes) -> list[Span]:
    return parse(exported)


def parse(exported: bytes) -> list[Span]:
    return [
        span
        for body in exported.splitlines()
        for resource in json.loads(body)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def attributes(span: Span) -> dict[str, str]:
    return {each["key"]: str(*each["value"].values()) for each in span.get("attributes", ())}


def of_request(spans: list[Span], request_id: str) -> dict[str, Span]:
    """A call's spans by the model that they are of."""
    return {span["name"]: span for span in spans if attributes(span).get("triton.request_id") == request_id}


def test_a_call_is_one_trace_of_the_ensemble_and_its_step(spans: list[Span]) -> None:
    mine = of_request(spans, "mine")
    assert set(mine) == {"score", "tokenizer", "scorer"}
    assert {span["traceId"] for span in mine.values()} == {TRACE}
    whole = mine["score"]
    assert mine["scorer"]["parentSpanId"] == whole["spanId"]
    assert attributes(mine["scorer"])["triton.model_name"] == "scorer"
    # What docs/operations.md reads a call's time from.
    starts = [int(mine[name]["startTimeUnixNano"]) for name in ("score", "tokenizer", "scorer")]
    assert starts == sorted(starts)
    assert starts[-1] < int(whole["endTimeUnixNano"])


def test_the_callers_span_is_the_parent(spans: list[Span]) -> None:
    (root,) = [span for span in spans if span["spanId"] == of_request(spans, "mine")["score"]["parentSpanId"]]
    assert (root["name"], root["parentSpanId"]) == ("InferRequest", PARENT)
    names = {event["name"] for event in root["events"]}
    assert {"GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_END"} <= names


def test_over_http_it_is_the_same(spans: list[Span]) -> None:
    names = {span["name"]: span["spanId"] for span in spans if span["traceId"] == HTTP_TRACE}
    parents = {span["name"]: span["parentSpanId"] for span in spans if span["traceId"] == HTTP_TRACE}
    assert {"InferRequest", "score", "scorer"} <= set(names)
    assert parents["InferRequest"] == PARENT
    assert parents["scorer"] == names["score"]


def test_a_call_of_the_api_is_one_trace_with_that_of_the_models(spans: list[Span]) -> None:
    mine = of_request(spans, "by-api")
    assert set(mine) == {"score", "tokenizer", "scorer"}
    assert {span["traceId"] for span in mine.values()} == {API_TRACE}
    (root,) = [span for span in spans if span["spanId"] == mine["score"]["parentSpanId"]]
    assert root["parentSpanId"] == PARENT
    # The control: without a trace of its caller's, a call has none.
    assert of_request(spans, "by-api-untraced") == {}


def test_a_refused_call_is_traced_too(spans: list[Span]) -> None:
    assert set(of_request(spans, "refused")) == {"score", "tokenizer"}


def test_control_a_call_that_does_not_ask_for_it_is_not_traced(spans: list[Span]) -> None:
    assert of_request(spans, "other") == {}
    assert {span["traceId"] for span in spans} == {TRACE, HTTP_TRACE, API_TRACE}


def test_no_text_is_exported(exported: bytes) -> None:
    assert b"mine" in exported  # the control: what is sent is found
    for text in (QUERY, *ITEMS, SEVERAL_TOKENS):
        assert text.encode() not in exported


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://collector/v1/traces", "http:///v1/traces", "http://me:key@collector/v1"]
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="must be like http://host:4318/v1/traces"):
        ServeSettings(trace_url=url)
