"""Fields of a request that are Triton's own: each model serves a call with them as it does one without."""

import json
import urllib.request
from typing import Any

import pytest

from hiscore.launcher import Server
from tests.server.raw_http import exchange, infer, post, tensor

pytestmark = pytest.mark.server

TEXTS = {"query": ["Is it?"], "items": [" a", " b"], "label_token_ids": [5, 6]}
IDS = {"input_ids": [11, 12, 0, 13, 0], "delimiter_indices": [2, 4], "label_token_ids": [5, 6]}
GOOD: dict[str, dict[str, Any]] = {
    "score": TEXTS,
    "tokenizer": TEXTS,
    "scorer": IDS,
    "decode": {"input_ids": [11, 12, 13], "max_tokens": 2, "stream": False},
}
BY_INFER = ("score", "tokenizer", "scorer")
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
OWN = {**SEQUENCE, "priority": 1, "timeout": 10**8, "headers": "x", "binary_data_output": False}


def generate(server: Server, model: str, fields: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(GOOD[model] | fields).encode()
    request = urllib.request.Request(f"{server.http_url}/v2/models/{model}/generate", data=body)
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def infer_with(model: str, of_inputs: dict[str, Any], of_outputs: dict[str, Any], **more: Any) -> bytes:
    rows = [
        tensor(name, [1, len(row)], "INT32" if isinstance(row[0], int) else "BYTES", row, **of_inputs)
        for name, row in GOOD[model].items()
    ]
    output = {"name": "input_ids" if model == "tokenizer" else "scores", "parameters": of_outputs}
    return post(f"/v2/models/{model}/infer", infer(rows, outputs=[output], **more))


@pytest.mark.parametrize("model", GOOD)
def test_generate_serves_what_it_hands_on_as_parameters(model: str, lm: Server) -> None:
    plain = generate(lm, model, {})
    for name, value in {"id": "42", **OWN, "triton_enable_empty_final_response": True}.items():
        answer = generate(lm, model, {name: value})
        assert answer.pop("id", None) == ("42" if name == "id" else None)
        assert answer == plain, name


@pytest.mark.parametrize("model", GOOD)
@pytest.mark.parametrize(("name", "value"), [("ids", "42"), ("timeout", "soon"), ("timeout", -1)])
def test_control_others_are_refused_by_name(name: str, value: Any, model: str, lm: Server) -> None:
    body = json.dumps(GOOD[model] | {name: value}).encode()
    answer = exchange(lm.http_address, post(f"/v2/models/{model}/generate", body))
    assert answer.startswith("HTTP/1.1 400 ")
    assert f"'{name}'" in answer


@pytest.mark.parametrize("model", ["scorer", "decode"])
def test_a_time_out_counts_over_generate_too(model: str, lm: Server) -> None:
    body = json.dumps(GOOD[model] | {"timeout": 1}).encode()
    assert "timeout expired" in exchange(lm.http_address, post(f"/v2/models/{model}/generate", body))


@pytest.mark.parametrize("model", BY_INFER)
def test_infer_serves_every_field_that_its_frontend_defines(model: str, lm: Server) -> None:
    def outputs(of_inputs: dict[str, Any], of_outputs: dict[str, Any], **more: Any) -> Any:
        status, _, body = exchange(
            lm.http_address, infer_with(model, of_inputs, of_outputs, **more)
        ).partition("OK ")
        assert status == "HTTP/1.1 200 ", body
        answer = json.loads(body)
        assert answer.get("id") == more.get("id")
        return answer["outputs"]

    plain = outputs({}, {})
    assert outputs({"x": 1}, {"binary_data": False, "x": 1}, id="42", parameters={"id": "x", **OWN}) == plain
    classes = outputs({}, {"classification": 1})
    assert [each["datatype"] for each in classes] == ["BYTES"]


@pytest.mark.parametrize("model", BY_INFER)
def test_no_field_reaches_shared_memory(model: str, lm: Server) -> None:
    region = {"shared_memory_region": "nope", "shared_memory_byte_size": 64}
    for of_inputs, of_outputs in ((region, {}), ({}, region)):
        answer = exchange(lm.http_address, infer_with(model, of_inputs, of_outputs))
        assert answer.startswith(("HTTP/1.1 400 ", "HTTP/1.1 404 "))
        assert "shared_memory_region" in answer or "'nope'" in answer
