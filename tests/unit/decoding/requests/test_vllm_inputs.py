"""The tensors of Triton's vLLM backend become the same request parameters, or an error that names them."""

import json
from typing import Any

import numpy as np
import pytest

from hiscore.decoding.requests.sampling_params import SamplingParams, parse_sampling_params
from hiscore.decoding.requests.vllm_inputs import answer_shape, merge_parameters
from hiscore.errors import RequestError


def read(given: dict[str, Any] | str, parameters: str = "", stream: bool | None = None) -> SamplingParams:
    text = given if isinstance(given, str) else json.dumps(given)
    return parse_sampling_params(merge_parameters(parameters, text, stream))


def test_without_the_tensors_nothing_changes() -> None:
    assert merge_parameters('{"top_k": 5}', None, None) == '{"top_k": 5}'
    outputs = {"usage": np.array([3, 0, 1], np.int32)}
    assert answer_shape("a", True, None, None, None)(outputs) == outputs


def test_what_the_frontend_sends_is_read() -> None:
    params = read(
        {
            "frequency_penalty": 0.5, "logit_bias": {"5": -1}, "logprobs": False, "n": 1, "presence_penalty": 0.0,
            "seed": 7, "stop": ["a", "b"], "temperature": 0.7, "top_p": 0.9, "max_tokens": 16,
        },
        '{"max_tokens": 3, "sparse": false}', stream=False,
    )  # fmt: skip
    assert (params.max_tokens, params.sparse, params.stream, params.stop) == (16, False, False, ("a", "b"))
    assert (params.frequency_penalty, params.logit_bias, params.seed) == (0.5, ((5, -1.0),), 7)


def test_numbers_may_be_strings_as_for_the_backend() -> None:
    params = read(
        {"temperature": "0", "top_p": "1", "max_tokens": "16", "top_k": -1, "stop": "x", "ignore_eos": "True"}
    )
    assert (params.temperature, params.top_p, params.max_tokens, params.top_k) == (0.0, 1.0, 16, 0)
    assert (params.stop, params.ignore_eos) == (("x",), True)


def test_a_tool_s_schema_is_a_grammar() -> None:
    whole = {
        "json": '{"type": "object"}',
        "regex": None,
        "choice": None,
        "grammar": None,
        "json_object": None,
    }
    assert read({"guided_decoding": json.dumps(whole)}).json_schema == '{"type": "object"}'
    assert read({"guided_decoding": {"json": {"type": "null"}}}).json_schema == '{"type": "null"}'
    assert read({"guided_decoding": {"regex": "a+"}}).regex == "a+"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[1]", "'sampling_parameters' must hold a JSON object, not '\\[1\\]'"),
        ("{", "'sampling_parameters' must hold a JSON object"),
        ({"n": 2}, "'sampling_parameters' has 'n': 2 is not supported"),
        ({"\ud83c": 1}, r"'sampling_parameters' has '\\ud83c': 1 is not supported"),
        ({"lora_name": "a"}, "'sampling_parameters' has 'lora_name': 'a' is not supported"),
        ({"temperature": "hot"}, "'temperature' must be a number, not 'hot'"),
        ({"temperature": "[" * 5_000}, r"'temperature' must be a number, not '\[\["),
        ({"guided_decoding": "[" * 5_000}, r"'guided_decoding' must hold a JSON object, not '\[\["),
        ({"top_p": "nan"}, "'top_p' must be a number, not 'nan'"),
        ({"top_p": 2}, "'top_p' must be greater than 0 and at most 1, not 2"),
        ({"stop": [5]}, "'stop' holds 5"),
        ({"guided_decoding": "x"}, "'guided_decoding' must hold a JSON object"),
        ({"guided_decoding": {"choice": ["a"]}}, "'guided_decoding' has 'choice', which is not supported"),
    ],
)
def test_what_cannot_be_served_is_named(given: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read(given)


def test_a_response_has_what_was_asked_for() -> None:
    outputs = {
        "text_output": np.array(["ü".encode()], np.object_),
        "output_ids": np.array([5, 6], np.int32),
        "usage": np.array([3, 1, 9], np.int32),
    }
    shaped = answer_shape("the prompt: ", False, False, True, True)(outputs)
    assert shaped["text_output"][0].decode() == "the prompt: ü"
    assert (shaped["num_input_tokens"].tolist(), shaped["num_output_tokens"].tolist()) == ([3], [2])
    assert shaped["num_input_tokens"].dtype == shaped["num_output_tokens"].dtype == np.uint32
    with pytest.raises(RequestError, match="must not be false while 'stream' is true"):
        answer_shape("a", True, False, None, None)
