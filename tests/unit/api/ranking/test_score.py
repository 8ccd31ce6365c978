from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from hiscore.settings import Limits
from tests.client.faulty_server import FaultyServer, checksum

LABELS = [5, 6]
ONE: dict[str, Any] = {"query": "a", "items": ["b"]}


def post(client: TestClient, **body: Any) -> Any:
    reply = client.post("/v1/score", json={"label_token_ids": LABELS, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def expected(query: bytes, items: list[bytes]) -> list[Any]:
    return [pytest.approx([checksum(query, item, str(label).encode()) for label in LABELS]) for item in items]


def test_text_goes_to_the_ensemble(client: TestClient, models: FaultyServer) -> None:
    answer = post(client, query="é?", items=["a", "", "b"], model="mine")
    assert answer["scores"] == expected("é?".encode(), [b"a", b"", b"b"])
    assert (answer["object"], answer["model"]) == ("scoring", "mine")
    assert models.requests[-1].model_name == "score"
    assert post(client, query="é?", items="a")["scores"] == expected("é?".encode(), [b"a"])
    assert post(client, query="q", items=[])["scores"] == []


def test_ids_go_to_the_scorer(client: TestClient, models: FaultyServer) -> None:
    assert post(client, query=[1, 2], items=[[3], [4, 5]])["scores"] == expected(
        b"[1, 2]", [b"[3]", b"[4, 5]"]
    )
    assert models.requests[-1].model_name == "scorer"
    swapped = post(client, query=[1, 2], items=[[3], [4, 5]], item_first=True)["scores"]
    assert swapped == expected(b"[]", [b"[3, 1, 2]", b"[4, 5, 1, 2]"])


def test_sglangs_defaults_and_candidates_of_each_item(client: TestClient) -> None:
    defaults = {"return_token_logprobs": False, "return_pooled_hidden_states": False, "temperature": 1.0}
    assert post(client, query="q", items=["a"], **defaults)["scores"] == expected(b"q", [b"a"])
    for query, items in (("q", ["a", "b"]), ([1, 2], [[3], [4, 5]])):
        own = post(client, query=query, items=items, label_token_ids=[[5, 6, 7], [8]])["scores"]
        counted = post(client, query=query, items=items, label_token_ids=[5, 6, 7, 8], label_counts=[3, 1])
        assert own == [counted["scores"][0], counted["scores"][1][:1]]
        assert list(map(len, counted["scores"])) == [3, 3]  # the control: these are filled up


def test_options_and_the_id_are_passed_on(client: TestClient, models: FaultyServer) -> None:
    body = {**ONE, "label_token_ids": LABELS, "apply_softmax": True, "temperature": 2.5, "item_first": True}
    body |= {"label_lengths": [len(LABELS)], "log_scores": True, "normalize": "tokens"}
    client.post("/v1/score", json=body, headers={"x-request-id": "mine"})
    request = models.requests[-1]
    assert request.id == "mine"
    assert request.parameters["apply_softmax"].bool_param
    assert request.parameters["log_scores"].bool_param
    assert request.parameters["normalize"].string_param == "tokens"
    assert request.parameters["label_lengths"].string_param == f"[{len(LABELS)}]"
    assert request.parameters["item_first"].bool_param
    assert request.parameters["temperature"].double_param == 2.5
    client.post("/v1/score", json={**ONE, "label_token_ids": LABELS, "raw_logits": True})
    assert models.requests[-1].parameters["raw_logits"].bool_param


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"query": "a", "items": [[1]]}, "text and token ids do not mix"),
        ({"query": [1], "items": ["a"]}, "must be lists of token ids"),
        ({"query": [1], "items": "a"}, "must be lists of token ids"),
        ({"query": [1], "items": [[2]], "labels": ["x"]}, "'labels' needs a query in text"),
        ({"query": [-1], "items": [[2]]}, "query[0]"),
        ({"query": [2**31], "items": [[2]]}, "query[0]"),
        ({"query": [1.5], "items": [[2]]}, "query[0]"),
        ({**ONE, "temperature": 0}, "temperature"),
        ({**ONE, "label_counts": [3]}, "label_counts"),
        ({"query": None, "items": ["b"]}, "'query': Expected `str | array`, got `null`"),
        ({"items": ["b"]}, "missing required field `query`"),
        ({"query": "a", "items": ["b", "c"], "label_token_ids": [[5]]}, "for each of 2 items"),
        ({"query": "a", "items": ["b", "c"], "label_token_ids": [[5], 6]}, "for each of 2 items"),
        ({"query": "a", "items": ["b", "c"], "label_token_ids": [[5], []]}, "for each of 2 items"),
        ({**ONE, "label_token_ids": [[5]], "label_counts": [1]}, "without 'label_counts'"),
        (
            {**ONE, "label_token_ids": [[5]], "label_lengths": [1]},
            "without 'label_counts' and 'label_lengths'",
        ),
        ({**ONE, "label_lengths": [1, 2]}, "'label_lengths' adds up to 3"),
        ({**ONE, "normalize": "words"}, "normalize"),
        ({"query": "a", "items": ["b"], "return_token_logprobs": True}, "return_token_logprobs"),
    ],
)
def test_what_cannot_be_scored_is_refused(client: TestClient, body: Any, says: str) -> None:
    reply = client.post("/v1/score", json={"label_token_ids": LABELS, **body})
    assert reply.status_code == 400
    assert says in reply.text


IN_IDS: dict[str, Any] = {"query": [1, 2, 3], "items": [[4], [5, 6]]}
TWO_EACH = {**IN_IDS, "label_token_ids": [5, 6, 7, 8], "label_counts": [2, 2]}


@pytest.mark.parametrize(
    ("body", "setting", "needed", "says"),
    [
        (IN_IDS, "max_call_tokens", 6, "have 6 tokens"),
        # The query of every item comes behind it.
        ({**IN_IDS, "item_first": True}, "max_call_tokens", 9, "have 9 tokens"),
        (IN_IDS, "max_context", 5, "have 5 tokens"),
        ({**IN_IDS, "items": []}, "max_context", 3, "have 3 tokens"),
    ],
)
def test_too_many_ids_are_refused_before_the_models_see_them(
    make_client: Callable[..., TestClient],
    models: FaultyServer,
    body: Any,
    setting: str,
    needed: int,
    says: str,
) -> None:
    body = {"label_token_ids": LABELS, **body}
    reply = make_client(**{setting: needed - 1}).post("/v1/score", json=body)
    assert reply.status_code == 400
    assert says in reply.text
    assert setting.upper() in reply.text
    assert not models.requests
    # The control: what fits gets there.
    assert make_client(**{setting: needed}).post("/v1/score", json=body).is_success
    assert models.requests


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**IN_IDS, "label_token_ids": [6, 7]}, "holds 2 labels: at most 1 in one call"),
        ({"query": "a", "items": ["b"], "label_token_ids": [6, 7]}, "holds 2 labels: at most 1 in one call"),
        # Of their own, each item may have as many.
        (TWO_EACH, "holds 4 labels: at most 2 for 2 items"),
    ],
)
def test_too_many_labels_are_refused_before_the_models_see_them(
    client: TestClient, models: FaultyServer, monkeypatch: pytest.MonkeyPatch, body: Any, says: str
) -> None:
    monkeypatch.setattr(Limits, "max_labels", 1)
    reply = client.post("/v1/score", json=body)
    assert reply.status_code == 400
    assert says in reply.text
    assert not models.requests
    monkeypatch.setattr(Limits, "max_labels", 2)
    assert client.post("/v1/score", json=body).is_success
