"""`/pooling` in vLLM's body: what the scorer is asked, and which values each text gets."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from hiscore.tokenization.file import read_backend
from tests.client.faulty_server import FaultyServer

MakePooled = Callable[..., TestClient]
TEXTS = ["a fruit", "an apple", "19 hammers"]


@pytest.fixture
def pooled(
    make_client: Callable[..., TestClient], models: FaultyServer, checkpoint: Path, tmp_path: Path
) -> MakePooled:
    """Make a client of a classifier whose logits at token t are t and 0, or at the end of a text 3 and 0."""

    def make(name: str, places: list[int] | None = None, labels: int = 2, **config: Any) -> TestClient:
        directory = shutil.copytree(checkpoint, tmp_path / "classifier")
        stored = json.loads((directory / "config.json").read_text()) | config | {"architectures": [name]}
        (directory / "config.json").write_text(json.dumps(stored))

        def change(outputs: dict[str, np.ndarray]) -> None:
            request = models.requests[-1]
            items = outputs["scores"].shape[1]
            if name.endswith(("SequenceClassification", "ForRewardModel")):
                outputs["scores"] = np.array([[[3, 0][:labels]] * items], np.float32)
            else:
                del outputs["scores"]
            if "places" in request.parameters or "scores" not in outputs:
                tokens = int(outputs["usage"][0, 0])
                found = np.arange(tokens, dtype=np.int32) if places is None else np.array(places, np.int32)
                outputs["places"] = found[None]
                outputs["place_values"] = np.stack((found, 0 * found), 1)[None, :, :labels].astype(np.float32)

        models.change = change
        return make_client(checkpoint=directory, prompt_labels="")

    return make


def data_of(client: TestClient, **body: Any) -> Any:
    reply = client.post("/pooling", json=body)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    assert answer["object"] == "list"
    assert {each["object"] for each in answer["data"]} == {"pooling"}
    return [each["data"] for each in answer["data"]]


def test_each_text_gets_the_values_of_its_own_tokens(pooled: MakePooled, checkpoint: Path) -> None:
    """The kind: values that are counted over all texts, and belong to one."""
    client, tokenizer = pooled("LlamaForTokenClassification"), read_backend(checkpoint)
    lengths = [len(tokenizer.encode(text).ids) for text in TEXTS]
    first = 0
    for found, length in zip(data_of(client, input=TEXTS, use_activation=False), lengths, strict=True):
        assert found == [[float(token), 0.0] for token in range(first, first + length)]
        first += length
    assert data_of(client, input=[5, 6], use_activation=False) == [[[0, 0], [1, 0]]]
    (steps,) = data_of(client, input=[[5, 6]], task="token_classify")
    np.testing.assert_allclose(steps[1], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], atol=1e-6)


def test_steps_are_sorted_into_their_solutions(pooled: MakePooled) -> None:
    client = pooled("Qwen2ForProcessRewardModel", places=[1, 2, 6])
    found = data_of(client, input=[[1, 2, 3], [4], [5, 6, 7]], use_activation=False)
    assert found == [[[1, 0], [2, 0]], [], [[6, 0]]]


@pytest.mark.parametrize(
    ("labels", "config", "expected"),
    [
        (2, {}, np.exp([3, 0]) / np.exp([3, 0]).sum()),
        (1, {}, [1 / (1 + np.exp(-3))]),
        (2, {"problem_type": "multi_label_classification"}, [1 / (1 + np.exp(-3)), 0.5]),
        (2, {"problem_type": "regression"}, [3, 0]),
    ],
)
def test_the_activation_is_that_of_the_config(
    labels: int, config: dict[str, Any], expected: Any, pooled: MakePooled, models: FaultyServer
) -> None:
    client = pooled("LlamaForSequenceClassification", labels=labels, **config)
    np.testing.assert_allclose(data_of(client, input="a fruit"), [expected], atol=1e-6)
    assert "places" not in models.requests[-1].parameters
    assert data_of(client, input="a fruit", use_activation=False) == [[3, 0][:labels]]
    assert data_of(client, input=[7, 8], task="token_classify", use_activation=False) == [
        [[0, 0][:labels], [1, 0][:labels]]
    ]


def test_a_reward_is_a_logit_unless_its_sigmoid_is_asked_for(pooled: MakePooled) -> None:
    client = pooled("Qwen2ForRewardModel", labels=1)
    assert data_of(client, input="a fruit") == [[3]]
    np.testing.assert_allclose(data_of(client, input="a", use_activation=True), [[0.95257]], atol=1e-5)


def test_texts_are_classified_as_they_are_pooled(pooled: MakePooled) -> None:
    client = pooled("LlamaForSequenceClassification", id2label={"0": "fruit", "1": "tool"})
    probabilities = data_of(client, input=TEXTS)
    for path in ("/classify", "/v1/classify"):
        answer = client.post(path, json={"input": TEXTS}).json()
        assert answer["data"] == [
            {"index": index, "label": "fruit", "probs": row, "num_classes": 2}
            for index, row in enumerate(probabilities)
        ]
    logits = client.post("/classify", json={"input": "a", "use_activation": False}).json()
    assert logits["data"][0]["probs"] == [3, 0]


@pytest.mark.parametrize(
    ("activation", "labels", "expected"),
    [
        ("linear.Identity", 1, [3]),
        ("activation.Tanh", 1, np.tanh([3])),
        ("activation.Sigmoid", 2, [0.95257, 0.5]),
    ],
)
def test_an_activation_of_the_files_comes_first(
    activation: str, labels: int, expected: Any, pooled: MakePooled
) -> None:
    named = {"activation_fn": f"torch.nn.modules.{activation}"}
    client = pooled("LlamaForSequenceClassification", labels=labels, sentence_transformers=named)
    np.testing.assert_allclose(data_of(client, input="a fruit"), [expected], atol=1e-5)


def test_an_activation_that_is_not_served_is_named(pooled: MakePooled) -> None:
    own = {"activation_fn": "my.own.Activation"}
    client = pooled("LlamaForSequenceClassification", sentence_transformers=own)
    reply = client.post("/classify", json={"input": "a"})
    assert (reply.status_code, "my.own.Activation" in reply.text) == (400, True)
    assert client.post("/classify", json={"input": "a", "use_activation": False}).status_code == 200


PAIR = ["Is it a fruit?", "an apple, " * 9]


@pytest.mark.parametrize("inputs", ["a fruit", PAIR, [PAIR, ["a fruit"], ["", "a"], ["a", ""]]])
def test_tei_predicts_texts_and_pairs(
    inputs: Any, pooled: MakePooled, models: FaultyServer, checkpoint: Path
) -> None:
    """The ids are those of the tokenizer's own pairs, each in a call of its own."""
    client = pooled("LlamaForSequenceClassification")
    reply = client.post("/predict", json={"inputs": inputs})
    assert reply.status_code == 200, reply.text
    batch = [[inputs]] if isinstance(inputs, str) else inputs if isinstance(inputs[0], list) else [inputs]
    both = [{"label": "LABEL_0", "score": pytest.approx(0.95257, abs=1e-5)},
            {"label": "LABEL_1", "score": pytest.approx(0.04743, abs=1e-5)}]  # fmt: skip
    assert reply.json() == (both if batch is not inputs else [both] * len(inputs))
    tokenizer = read_backend(checkpoint)
    expected = [tokenizer.encode(*texts).ids for texts in batch]
    sent = [
        [np.frombuffer(part, np.int32).tolist() for part in call.raw_input_contents[:2]]
        for call in models.requests[-len(batch) :]
    ]
    found = [[token for place, token in enumerate(ids) if place not in places] for ids, places in sent]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    "inputs", [[], [[]], ["a", ["b"]], ["a", "b", "c"], [["a", "b", "c"]], "apple " * 9_000, 7]
)
def test_what_cannot_be_predicted_is_refused(inputs: Any, pooled: MakePooled) -> None:
    client = pooled("LlamaForSequenceClassification", max_position_embeddings=256)
    reply = client.post("/predict", json={"inputs": inputs})
    assert (reply.status_code, reply.json()["error_type"]) == (400, "Validation")
    assert "truncate" in client.post("/predict", json={"inputs": "a", "truncate": True}).text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": []}, "'input' must be a text"),
        ({"input": ["a", [1]]}, "'input' must be a text"),
        ({"input": [[]]}, "no tokens at index 0"),
        ({"input": [[1] * 300]}, "at most 256"),
        ({"input": "a", "task": "classify"}, "its task is 'token_classify'"),
        ({"input": "a", "task": "embed"}, "embed"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
    ],
)
def test_what_cannot_be_pooled_is_refused(body: dict[str, Any], says: str, pooled: MakePooled) -> None:
    client = pooled("LlamaForTokenClassification", max_position_embeddings=256)
    reply = client.post("/pooling", json=body)
    assert reply.status_code == 400
    assert says in reply.text


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"query": [1], "items": [[2]]})],
)
def test_a_model_of_tokens_ranks_nothing(path: str, body: dict[str, Any], pooled: MakePooled) -> None:
    reply = pooled("LlamaForTokenClassification").post(path, json=body)
    assert (reply.status_code, "ask /pooling" in reply.text) == (400, True)


def test_each_group_of_a_guards_labels_adds_up_to_one(pooled: MakePooled) -> None:
    counts = {"num_risk_level": 1, "num_category": 1, "num_query_risk_level": 0, "num_query_category": 0}
    client = pooled("Qwen3ForGuardModel", **counts)
    assert data_of(client, input=[4, 5]) == [[[1, 1], [1, 1]]]
