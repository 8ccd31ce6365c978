import pytest
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"query": "a", "items": ["b"], "label_token_ids": [5]}


def sent(client: TestClient, models: FaultyServer, **headers: str) -> dict[str, str]:
    assert client.post("/v1/score", json=BODY, headers=headers).status_code == 200
    found = models.metadata[-1]
    return {name: found[name] for name in ("traceparent", "tracestate") if name in found}


def test_a_trace_goes_on_to_the_models(client: TestClient, models: FaultyServer) -> None:
    assert sent(client, models, traceparent=PARENT) == {"traceparent": PARENT}
    both = {"traceparent": PARENT, "tracestate": "vendor=1,other=2"}
    assert sent(client, models, **both) == both


def test_the_next_request_has_its_own(client: TestClient, models: FaultyServer) -> None:
    assert sent(client, models, traceparent=PARENT)
    assert sent(client, models) == {}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-x",
        PARENT[:-1],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "a\tb",
    ],
)
def test_what_is_no_trace_is_left_out(client: TestClient, models: FaultyServer, parent: str) -> None:
    assert sent(client, models, traceparent=parent, tracestate="a=1") == {}


def test_a_state_that_cannot_be_sent_is_left_out(client: TestClient, models: FaultyServer) -> None:
    assert sent(client, models, traceparent=PARENT, tracestate="a" * 513) == {"traceparent": PARENT}
