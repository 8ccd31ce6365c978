import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from hiscore.api.chat.sampling import INT64_MAX, GenerationRequest, Sampling, of_choice
from hiscore.api.http.errors import ApiError, from_models
from hiscore.decoding.requests.sampling_params import parse_sampling_params
from hiscore_client import InvalidRequest
from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import MESSAGES


def parameters(directory: Path, **given: Any) -> dict[str, Any]:
    return Sampling(directory).parameters(msgspec.convert({"stream": True, **given}, GenerationRequest))


def test_what_is_left_open_is_openais_or_the_checkpoints(tmp_path: Path) -> None:
    assert parameters(tmp_path) == {"temperature": 1.0}
    assert parameters(tmp_path, stream=None) == {"temperature": 1.0, "stream": False}
    suggested = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": None,
        "eos_token_id": [1],
        "do_sample": True,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(suggested))
    assert parameters(tmp_path) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert parameters(tmp_path, temperature=0, top_k=None)["temperature"] == 0


def test_decode_takes_what_comes_out(tmp_path: Path) -> None:
    given = parameters(
        tmp_path, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, repetition_penalty=1.1, presence_penalty=1,
        frequency_penalty=-1, logit_bias={"5": -100, "7": 2.5}, seed=3, stop="a", stop_token_ids=[4], max_tokens=9,
        min_tokens=2, sparse=False, include_stop_str_in_output=True,
    )  # fmt: skip
    read = parse_sampling_params(json.dumps(given))
    assert (read.temperature, read.top_p, read.top_k, read.min_p) == (0.5, 0.9, 0, 0.1)
    assert (read.repetition_penalty, read.presence_penalty, read.frequency_penalty) == (1.1, 1, -1)
    assert dict(read.logit_bias) == {5: -100, 7: 2.5}
    assert (read.seed, read.stop, read.stop_token_ids) == (3, ("a",), {4})
    assert (read.max_tokens, read.min_tokens, read.sparse) == (9, 2, False)
    assert read.include_stop_str_in_output
    assert parse_sampling_params(json.dumps(parameters(tmp_path, ignore_eos=True))).ignore_eos


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "text"}, None),
        (None, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": {"enum": [1]}}, {"enum": [1], "x-guidance": {"lenient": True}}),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1]}}},
            {"enum": [1], "x-guidance": {"lenient": True}},
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1]}, "strict": True}},
            {"enum": [1]},
        ),
    ],
)
def test_a_response_format_is_a_schema(tmp_path: Path, wanted: Any, schema: Any) -> None:
    given = parameters(tmp_path, response_format=wanted)
    assert json.loads(given.get("json_schema", "null")) == schema


def test_the_likeliest_token_alone_has_a_top_p_of_zero(tmp_path: Path) -> None:
    read = parse_sampling_params(json.dumps(parameters(tmp_path, top_p=0, top_k=40)))
    assert (read.top_p, read.top_k) == (1, 1)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="json_schema"):
        parameters(tmp_path, response_format={"type": "json_schema"})
    for name in ("a", "-1", "½", ""):
        with pytest.raises(ApiError, match="not a token id"):
            parameters(tmp_path, logit_bias={name: 1})


@pytest.mark.parametrize("seed", [0, -5, INT64_MAX, -INT64_MAX - 1])
def test_each_choice_has_its_seed(seed: int) -> None:
    seeds = [of_choice({"seed": seed}, index)["seed"] for index in range(3)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 3
    assert all(-INT64_MAX - 1 <= each <= INT64_MAX for each in seeds)
    assert of_choice({"temperature": 1.0}, 2) == {"temperature": 1.0}


def test_a_salt_reaches_decode(tmp_path: Path) -> None:
    assert parse_sampling_params(json.dumps(parameters(tmp_path, cache_salt="mine"))).cache_salt == "mine"
    with pytest.raises(msgspec.ValidationError, match="cache_salt"):
        parameters(tmp_path, cache_salt="")


@pytest.mark.parametrize(
    "name",
    [
        "use_beam_search",
        "no_stop_trim",
        "return_hidden_states",
        "return_token_ids",
        "return_tokens_as_token_ids",
    ],
)
def test_what_other_servers_have_and_is_off_changes_nothing(tmp_path: Path, name: str) -> None:
    assert parameters(tmp_path, **{name: False}) == parameters(tmp_path)
    with pytest.raises(msgspec.ValidationError, match=name):
        parameters(tmp_path, **{name: True})


def test_the_models_take_all_stop_tokens_of_a_route_and_the_one_that_ends_a_turn(
    client: TestClient, models: FaultyServer
) -> None:
    body = {"messages": MESSAGES, "stop_token_ids": list(range(1_024)), "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    ids = models.requests[-1].parameters["stop_token_ids"].string_param
    assert len(json.loads(ids)) == 1_025
    assert parse_sampling_params(json.dumps({"stop_token_ids": ids})).stop_token_ids >= set(range(1_024))


@pytest.mark.parametrize(
    ("given", "said", "param"),
    [
        ({}, "parameter 'json_schema': bad", "response_format"),
        ({"regex": "("}, "parameter 'regex': bad", "regex"),
        ({"structured_outputs": {"regex": "("}}, "parameter 'regex': bad", "structured_outputs"),
        (
            {"structured_outputs": {"json": "{"}},
            "parameters 'json_schema' and 'ignore_eos'",
            "structured_outputs",
        ),
    ],
)
def test_a_refused_grammar_is_named_as_it_was_sent(given: dict[str, Any], said: str, param: str) -> None:
    error = from_models(InvalidRequest(said), msgspec.convert(given, GenerationRequest).words)
    assert error.param == param
    assert f"'{param}'" in error.message
