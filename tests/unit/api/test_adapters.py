"""An adapter as `model`: each route that scores hands its name to the models, and none is taken for another's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from starlette.testclient import TestClient

from hiscore.api.wire import ModelNames
from hiscore.models.adapter_files import AdapterFacts
from tests.client.faulty_server import FaultyServer

BODIES: dict[str, dict[str, Any]] = {
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
    "/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/rerank": {"query": "a", "texts": ["b"]},
    "/v1/ranking": {"query": {"text": "a"}, "passages": [{"text": "b"}]},
    "/v1/decisions": {"input": "an apple", "questions": [{"type": "predicate", "instructions": "a fruit?"}]},
    "/v1/systemone": {
        "state": "an apple",
        "questions": {"fruit": {"type": "noul", "instructions": "a fruit?"}},
    },
}
HEADED = ("/classify", "/pooling")
"""Routes that read the head of an adapter, and no labels."""


@pytest.fixture
def judged(make_client: Callable[..., TestClient], tmp_path: Path) -> TestClient:
    """A client of an API with the adapters `plain` and, with a head of its own, `headed`."""
    for name, labels in (("plain", 0), ("headed", 3)):
        module = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        tensors = {f"{module}A.weight": np.zeros((2, 4)), f"{module}B.weight": np.zeros((4, 2))}
        if labels:
            tensors["base_model.model.score.weight"] = np.zeros((labels, 4))
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "task_type": "SEQ_CLS" if labels else "CAUSAL_LM",
            "r": 2,
            "target_modules": ["q_proj"],
        }
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    return make_client(adapters=f"plain={tmp_path / 'plain'},headed={tmp_path / 'headed'}")


@pytest.mark.parametrize("route", BODIES)
def test_each_route_names_the_adapter_to_the_models(
    route: str, judged: TestClient, models: FaultyServer
) -> None:
    """The control is the checkpoint's own name, by which no adapter computes."""
    own = judged.get("/v1/models").json()["data"][0]["id"]
    for name, expected in (("plain", "plain"), (own, ""), (None, "")):
        models.requests.clear()
        reply = judged.post(route, json=BODIES[route] | ({"model": name} if name else {}))
        assert reply.status_code == 200, reply.text
        assert models.requests
        for request in models.requests:
            assert request.parameters["adapter"].string_param == expected
    unknown = judged.post(route, json=BODIES[route] | {"model": "plane"})
    assert unknown.status_code == 404
    assert "plain, headed" in unknown.text
    if route != "/v1/score":
        refused = judged.post(route, json=BODIES[route] | {"model": "headed"})
        assert (refused.status_code, "head of its own" in refused.text) == (400, True)


@pytest.mark.parametrize("route", HEADED)
def test_a_head_is_read_where_no_labels_are(route: str, judged: TestClient, models: FaultyServer) -> None:
    def change(outputs: dict[str, np.ndarray]) -> None:
        outputs["scores"] = np.array([[[0, 2, 1]]], np.float32)

    models.change = change
    reply = judged.post(route, json={"model": "headed", "input": "an apple"})
    assert reply.status_code == 200, reply.text
    assert models.requests[-1].parameters["adapter"].string_param == "headed"
    if route == "/classify":
        (found,) = reply.json()["data"]
        assert (found["label"], found["num_classes"]) == ("LABEL_1", 3)
        np.testing.assert_allclose(found["probs"], np.exp([0, 2, 1]) / np.exp([0, 2, 1]).sum(), atol=1e-6)
    for without in ({}, {"model": "plain"}):
        refused = judged.post(route, json={"input": "an apple"} | without)
        assert (refused.status_code, "no head" in refused.text) == (400, True)


def test_items_have_adapters_of_their_own(judged: TestClient, models: FaultyServer) -> None:
    names = ["headed", "headed"]
    body = {"query": "a", "items": ["b", "c"], "item_adapters": names}
    models.change = lambda outputs: outputs.update(scores=np.zeros((1, 2, 3), np.float32))
    assert judged.post("/v1/score", json=body).status_code == 200
    assert json.loads(models.requests[-1].parameters["item_adapters"].string_param) == names


def test_prompts_are_scored_and_nothing_is_generated(judged: TestClient, models: FaultyServer) -> None:
    for route, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        refused = judged.post(route, json=body | {"model": "plain", "max_tokens": 3})
        assert (refused.status_code, "generates nothing" in refused.text) == (400, True)
    assert not models.requests


def test_the_list_of_models_names_the_parent(judged: TestClient) -> None:
    own, *adapters = judged.get("/v1/models").json()["data"]
    assert "parent" not in own
    assert [(each["id"], each["parent"]) for each in adapters] == [
        ("plain", own["id"]),
        ("headed", own["id"]),
    ]
    assert judged.get("/v1/models/plain").json()["parent"] == own["id"]


def test_an_adapter_may_not_have_the_checkpoints_name() -> None:
    with pytest.raises(ValueError, match="API_MODEL_NAMES"):
        ModelNames("", "judge", {"judge": AdapterFacts(1, 0, ())})
