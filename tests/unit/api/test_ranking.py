"""The rerank routes: each family's fields, and the order of the answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import BODIES

DOCUMENTS = ["zero", "one", "two", "three"]
P = [0.25, 0.875, 0.5, 0.125]
BEST = [1, 2, 0, 3]
LOGITS = np.log(P) - np.log1p(-np.array(P))
Found = list[tuple[int, float]]
ONE = {"query": "q", "documents": ["a"]}
PASSAGES = {"query": {"text": "q"}, "passages": [{"text": "a"}]}
ALL: dict[str, Any] = {"query": "q", "documents": DOCUMENTS}


@pytest.fixture
def ranked(client: TestClient, models: FaultyServer) -> TestClient:
    """A client of a model that gives P, as far as there are documents."""

    def change(outputs: dict[str, np.ndarray]) -> None:
        count = outputs["scores"].shape[1]
        # Logits that any number may be added to.
        outputs["scores"] = np.array([[[logit + 7, 7] for logit in LOGITS[:count]]], np.float32)

    models.change = change
    return client


def post(client: TestClient, path: str, body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def as_results(answer: Any) -> Found:
    return [(each["index"], each["relevance_score"]) for each in answer["results"]]


def as_ranks(answer: Any) -> Found:
    return [(each["index"], each["score"]) for each in answer]


def as_rankings(answer: Any) -> Found:
    return [(each["index"], each["logit"]) for each in answer["rankings"]]


@pytest.mark.parametrize(
    ("path", "body", "read", "scores"),
    [
        *((path, ALL, as_results, P) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
        ("/v1/rerank", {"query": "q", "documents": [{"text": t, "id": 7} for t in DOCUMENTS]}, as_results, P),
        ("/rerank", {"query": "q", "texts": DOCUMENTS}, as_ranks, P),
        ("/rerank", {"query": "q", "texts": DOCUMENTS, "raw_scores": True}, as_ranks, LOGITS),
        ("/v1/rerank", {**ALL, "raw_scores": True}, as_results, LOGITS),
        ("/v2/rerank", {**ALL, "use_activation": False}, as_results, LOGITS),
        ("/v1/rerank", {**ALL, "use_activation": True, "raw_scores": False}, as_results, P),
        (
            "/v1/ranking",
            {**PASSAGES, "passages": [{"text": text} for text in DOCUMENTS]},
            as_rankings,
            LOGITS,
        ),
    ],
)
def test_the_best_come_first(
    ranked: TestClient, path: str, body: Any, read: Callable[[Any], Found], scores: Any
) -> None:
    found = read(post(ranked, path, body))
    assert [index for index, _ in found] == BEST
    assert [score for _, score in found] == pytest.approx([scores[index] for index in BEST])


def test_top_n_and_documents_back(ranked: TestClient) -> None:
    answer = post(ranked, "/v1/rerank", {**ALL, "top_n": 2, "return_documents": True})
    assert [each["document"] for each in answer["results"]] == [{"text": "one"}, {"text": "two"}]
    for everything in (9, 0, None):
        assert len(post(ranked, "/v1/rerank", {**ALL, "top_n": everything})["results"]) == 4
    assert "document" not in post(ranked, "/v1/rerank", ALL)["results"][0]
    texts = {"query": "q", "texts": DOCUMENTS}
    assert [each["text"] for each in post(ranked, "/rerank", {**texts, "return_text": True})] == [
        DOCUMENTS[index] for index in BEST
    ]
    assert "text" not in post(ranked, "/rerank", texts)[0]
    assert len(post(ranked, "/rerank", {**texts, "top_n": 3})) == 3


def test_objects_are_ranked_by_their_texts(ranked: TestClient) -> None:
    body = {"query": "q", "documents": [{"text": text, "title": "t"} for text in DOCUMENTS]}
    answer = post(ranked, "/v1/rerank", {**body, "rank_fields": ["text"]})
    assert answer["results"] == post(ranked, "/v1/rerank", body)["results"]
    # By other fields they are not.
    reply = ranked.post("/v1/rerank", json={**body, "rank_fields": ["title", "text"]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "rank_fields[0]")


def test_usage_is_in_the_places_that_clients_look_at(ranked: TestClient) -> None:
    answer = post(ranked, "/v2/rerank", ALL)
    tokens = answer["usage"]["prompt_tokens"]
    assert tokens == answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 0
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    nim = post(ranked, "/v1/ranking", PASSAGES)
    assert nim["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "many", "cut"),
    [
        ("/v1/rerank", "documents", {"max_tokens_per_doc": 5}),
        ("/v1/rerank", "documents", {"truncate_prompt_tokens": 200}),
        ("/v1/rerank", "documents", {"truncate_prompt_tokens": -1}),
        ("/rerank", "texts", {"truncate": True}),
        ("/rerank", "texts", {"truncate": True, "truncation_direction": "left"}),
        ("/v1/ranking", "passages", {"truncate": "END"}),
    ],
)
def test_what_was_cut_is_said(ranked: TestClient, path: str, many: str, cut: Any) -> None:
    texts: list[Any] = ["apple", "apple nails screws " * 100]
    query: Any = "q"
    if many == "passages":
        texts, query = [{"text": text} for text in texts], {"text": query}
    answer = post(ranked, path, {"query": query, many: texts, **cut})
    rows = answer if isinstance(answer, list) else answer.get("results", answer.get("rankings"))
    assert {each["index"]: each.get("truncated", False) for each in rows} == {0: False, 1: True}


@pytest.mark.parametrize("unasked", [{}, {"max_tokens_per_doc": 0}, {"truncation_side": "left"}])
def test_nothing_is_cut_unasked(ranked: TestClient, models: FaultyServer, unasked: dict[str, Any]) -> None:
    documents = ["apple", "apple nails screws " * 100]
    answers = [
        post(ranked, "/v1/rerank", {"query": "q", "documents": documents, **unasked})["results"],
        post(ranked, "/score", {"text_1": "q", "text_2": documents, **unasked})["data"],
    ]
    assert not [each for answer in answers for each in answer if "truncated" in each]
    # The whole text is sent, for the models to refuse.
    assert [request.inputs[0].shape[1] > 256 for request in models.requests[-2:]] == [True, True]


def test_what_is_left_of_a_text_is_the_side_that_is_asked_for(
    ranked: TestClient, models: FaultyServer
) -> None:
    def sent(path: str, **body: Any) -> bytes:
        post(ranked, path, body)
        return bytes(models.requests[-1].raw_input_contents[0])

    text = "apple nails screws " * 100
    for side in ("left", "right"):
        tei = sent("/rerank", query="q", texts=[text], truncate=True, truncation_direction=side)
        for cut in ({"truncate_prompt_tokens": -1}, {"max_tokens_per_doc": 50}):
            whose = {"truncation_side": side, **cut}
            ranks = sent("/v1/rerank", query="q", documents=[text], **whose)
            pairs = sent("/score", text_1="q", text_2=[text], **whose)
            assert ranks == pairs
            assert (ranks == tei) == ("truncate_prompt_tokens" in cut)
            other = {**whose, "truncation_side": {"left": "right", "right": "left"}[side]}
            assert sent("/v1/rerank", query="q", documents=[text], **other) != ranks  # the control


def test_pairs_keep_their_order(ranked: TestClient) -> None:
    for path in ("/score", "/v1/score"):
        for first in ("q", ["q"], ["q"] * 4):
            answer = post(ranked, path, {"text_1": first, "text_2": DOCUMENTS})
            assert [each["score"] for each in answer["data"]] == pytest.approx(P)
            assert [each["index"] for each in answer["data"]] == [0, 1, 2, 3]
            assert {each["object"] for each in answer["data"]} == {"score"}
    for names in (("queries", "documents"), ("data_1", "data_2"), ("text_1", "items")):
        answer = post(ranked, "/score", {names[0]: "q", names[1]: "d"})
        assert [each["score"] for each in answer["data"]] == pytest.approx(P[:1])


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/rerank", {"query": "q", "documents": []}, "'documents' is empty"),
        ("/v1/rerank", {**ONE, "top_n": -1}, "top_n"),
        ("/v1/rerank", {**ONE, "truncate_prompt_tokens": 2}, "at most 2 are asked for"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "at most 0 are asked for"),
        ("/v1/rerank", {**ONE, "truncate_prompt_tokens": -2}, "truncate_prompt"),
        ("/rerank", {"query": "q", "texts": []}, "'texts' is empty"),
        ("/rerank", {"query": "q", "texts": ["a"], "truncation_direction": "up"}, "truncation_direction"),
        ("/v1/ranking", {"query": {"text": "q"}, "passages": []}, "'passages' is empty"),
        ("/v1/ranking", {**PASSAGES, "truncate": "START"}, "truncate"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "2 texts cannot be paired with 3"),
        ("/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "exactly one of"),
        ("/score", {"text_1": "a"}, "exactly one of"),
        ("/score", {"text_1": "a", "text_2": []}, "'text_2' is empty"),
    ],
)
def test_what_cannot_be_ranked_is_refused(client: TestClient, path: str, body: Any, says: str) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400
    assert says in reply.text


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_an_instruction_by_sglangs_name(client: TestClient, models: FaultyServer, path: str) -> None:
    sent = []
    for name in ("instruction", "instruct"):
        assert client.post(path, json={**ONE, name: "Only tools."}).status_code == 200
        sent.append(models.requests[-1].raw_input_contents[0])
    assert sent[0] == sent[1]
    # The control: another instruction makes another prompt.
    client.post(path, json={**ONE, "instruct": "Only fruits."})
    assert models.requests[-1].raw_input_contents[0] != sent[0]
    twice = client.post(path, json={**ONE, "instruction": "Only tools.", "instruct": "Only tools."})
    assert twice.status_code == 400
    assert "send one" in twice.text


@pytest.mark.parametrize(
    ("path", "body", "name", "usual"),
    [
        ("/v1/rerank", {**ONE, "raw_scores": False}, "use_activation", True),
        ("/v1/score", BODIES["/v1/score"][0], "return_pooled_hidden_states", False),
    ],
)
def test_what_other_servers_do_by_default_is_taken(
    client: TestClient, path: str, body: dict[str, Any], name: str, usual: bool
) -> None:
    assert client.post(path, json={**body, name: usual}).status_code == 200
    reply = client.post(path, json={**body, name: not usual})
    assert reply.status_code == 400
    assert name in reply.text


def test_labels_of_several_tokens_are_compared_by_their_logarithms(
    make_client: Callable[..., TestClient], models: FaultyServer
) -> None:
    def logarithms(outputs: dict[str, np.ndarray]) -> None:
        outputs["scores"] = np.array([[[-7.0, -5.0], [-90.0, -91.0]]], np.float32)

    models.change = logarithms
    client = make_client(prompt_labels="a fruit indeed,no")
    body = {"query": "a fruit", "documents": ["a hammer", "an apple"]}
    results = post(client, "/v1/rerank", body)["results"]
    found = {each["index"]: each["relevance_score"] for each in results}
    assert found == pytest.approx({0: 1 / (1 + np.exp(2)), 1: 1 / (1 + np.exp(-1))})
    sent = models.requests[-1].parameters
    assert sent["log_scores"].bool_param
    assert sent["label_lengths"].string_param == "[6, 2]"
    assert "raw_logits" not in sent
