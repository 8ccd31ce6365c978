"""The parameters of ``decode``: strict, with messages that name the parameter, the value and the bound."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.requests.sampling_params import SamplingParams, parse_sampling_params
from hiscore.errors import Code, RequestError


def test_the_defaults_are_those_of_the_contract() -> None:
    assert SamplingParams() == SamplingParams(0, 0.0, 0, 1.0, 0, False, (), frozenset(), True)
    for nothing in ("", "{}"):
        assert replace(parse_sampling_params(nothing), seed=0) == SamplingParams()


def test_every_parameter_is_read() -> None:
    given = {
        "max_tokens": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "seed": -3, "ignore_eos": True,
        "sparse": False, "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": -2,
        "frequency_penalty": 2, "min_tokens": 3, "logprobs": 20, "stream": False, "add_special_tokens": False,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "cache_salt": "a caller",
    }  # fmt: skip
    texts = {"stop": '["\\n", "ü"]', "stop_token_ids": "[5, 0, 5]", "logit_bias": '{"17": -100, "0": 1.5}',
             "reasoning": '["<a>", "</a>"]'}  # fmt: skip
    read = {
        "stop": ("\n", "ü"), "reasoning": ("<a>", "</a>"), "stop_token_ids": frozenset({0, 5}),
        "logit_bias": ((17, -100.0), (0, 1.5)),
    }  # fmt: skip
    grammars = {"json_schema": "{}", "regex": "a", "ebnf": 'root ::= "a"'}
    for name, grammar in grammars.items():
        assert getattr(parse_sampling_params(json.dumps({name: grammar})), name) == grammar
    assert parse_sampling_params(json.dumps(given | texts)) == SamplingParams(**given, **read)
    assert set(given | texts | grammars) == {field.name for field in fields(SamplingParams)}


def test_whole_numbers_are_taken_where_fractions_are_meant() -> None:
    options = parse_sampling_params('{"temperature": 1, "top_p": 1}')
    assert (options.temperature, options.top_p) == (1.0, 1.0)
    assert type(options.temperature) is type(options.top_p) is float


def test_without_a_seed_each_request_gets_its_own() -> None:
    seeds = {parse_sampling_params("").seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_tokens", 0, "must be at least 1, not 0"),
        ("max_tokens", 2**31, "must be at most 2147483647, not 2147483648"),
        ("max_tokens", True, "must be an integer, not True"),
        ("max_tokens", 4.0, "must be an integer, not 4.0"),
        ("max_tokens", "4", "must be an integer, not '4'"),
        ("temperature", -0.5, "must be at least 0, not -0.5"),
        ("temperature", False, "must be a number, not False"),
        ("temperature", float("nan"), "must be finite, not nan"),
        ("temperature", float("inf"), "must be finite, not inf"),
        ("temperature", 10**400, "must be finite, not 1000"),
        ("top_k", -1, "must be at least 0, not -1"),
        ("top_k", None, "must be an integer, not None"),
        ("top_p", 0, "must be greater than 0 and at most 1, not 0.0"),
        ("top_p", 1.5, "must be greater than 0 and at most 1, not 1.5"),
        ("top_p", "1", "must be a number, not '1'"),
        ("seed", 2**63, "must be at most 9223372036854775807"),
        ("seed", -(2**63) - 1, "must be at least -9223372036854775808"),
        ("seed", None, "must be an integer, not None"),
        ("ignore_eos", 1, "must be true or false, not 1"),
        ("sparse", "true", "must be true or false, not 'true'"),
        ("stop", "\n", "must be a string that holds a JSON list of non-empty strings, not '\\n'"),
        ("stop", ["a"], "must be a string that holds a JSON list of non-empty strings, not ['a']"),
        ("stop", '"a"', "must be a string that holds a JSON list"),
        ("stop", "[" * 100_000, "must be a string that holds a JSON list"),
        ("stop", '["a", ""]', "holds '': not a non-empty string"),
        ("stop", '["a", 1]', "holds 1: not a non-empty string"),
        ("stop", json.dumps(["x" * 257]), "holds a string of 257 characters: at most 256"),
        ("stop", json.dumps(["x"] * 65), "has 65 entries: at most 64"),
        ("stop_token_ids", 5, "must be a string that holds a JSON list of token ids, not 5"),
        ("min_p", 1.5, "must be at least 0 and at most 1, not 1.5"),
        ("min_p", float("nan"), "must be finite, not nan"),
        ("min_p", "0", "must be a number, not '0'"),
        ("repetition_penalty", 0, "must be at least 0.01 and at most 100, not 0.0"),
        ("repetition_penalty", 101, "must be at least 0.01 and at most 100, not 101.0"),
        ("repetition_penalty", True, "must be a number, not True"),
        ("repetition_penalty", float("inf"), "must be finite, not inf"),
        ("presence_penalty", 2.5, "must be at least -2 and at most 2, not 2.5"),
        ("presence_penalty", None, "must be a number, not None"),
        ("frequency_penalty", -2.5, "must be at least -2 and at most 2, not -2.5"),
        ("frequency_penalty", float("-inf"), "must be finite, not -inf"),
        ("frequency_penalty", "1", "must be a number, not '1'"),
        ("logit_bias", {"1": 2}, "must be a string that holds a JSON object of token ids"),
        ("logit_bias", "[1]", "must be a string that holds a JSON object of token ids"),
        ("logit_bias", '{"1": 2', "must be a string that holds a JSON object of token ids"),
        ("logit_bias", '{"a": 2}', "holds 'a': not a token id"),
        ("logit_bias", '{"-1": 2}', "holds '-1': not a token id"),
        ("logit_bias", '{"2147483648": 2}', "holds '2147483648': not a token id"),
        ("logit_bias", '{"1": 101}', "of '1' must be at least -100 and at most 100, not 101.0"),
        ("logit_bias", '{"1": NaN}', "of '1' must be finite, not nan"),
        ("logit_bias", '{"1": "2"}', "of '1' must be a number, not '2'"),
        ("logit_bias", json.dumps(dict.fromkeys(range(1025), 0)), "has 1025 entries: at most 1024"),
        ("min_tokens", -1, "must be at least 0, not -1"),
        ("min_tokens", 0.5, "must be an integer, not 0.5"),
        ("logprobs", 21, "must be at most 20, not 21"),
        ("logprobs", -1, "must be at least 0, not -1"),
        ("logprobs", True, "must be an integer, not True"),
        ("stream", 0, "must be true or false, not 0"),
        ("add_special_tokens", "no", "must be true or false, not 'no'"),
        ("include_stop_str_in_output", None, "must be true or false, not None"),
        ("json_schema", {}, "must be a non-empty string, not {}"),
        ("regex", "", "must be a non-empty string, not ''"),
        ("regex", "a\udc00", "is not valid Unicode: 'a\\udc00'"),
        ("cache_salt", "\ud83c", "is not valid Unicode: '\\ud83c'"),
        ("ebnf", 5, "must be a non-empty string, not 5"),
        ("regex", "a" * 65_537, "holds 65537 characters: at most 65536"),
        ("reasoning", '["a", "b", "c"]', "has 3 entries: at most 2"),
        ("stop_token_ids", "[1.0]", "holds 1.0: not a token id"),
        ("stop_token_ids", "[true]", "holds True: not a token id"),
        ("stop_token_ids", "[-1]", "holds -1: not a token id"),
        ("stop_token_ids", "[2147483648]", "holds 2147483648: not a token id"),
        ("stop_token_ids", json.dumps([1] * 1026), "has 1026 entries: at most 1025"),
    ],
)
def test_what_is_not_allowed_is_refused(name: str, value: object, says: str) -> None:
    check_refusal({name: value}, f"'{name}' {says}")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_token": 1}, "unknown parameter 'max_token': known are max_tokens, temperature, top_k"),
        ({"min_tokens": 5, "max_tokens": 4}, "'min_tokens' must be at most 'max_tokens', 4, not 5"),
        ({"regex": "a", "ebnf": "b"}, "parameters 'regex' and 'ebnf' exclude each other"),
        ({"regex": "a", "ignore_eos": True}, "parameters 'regex' and 'ignore_eos' exclude each other"),
        ({"json_schema": "{}", "min_tokens": 1}, "parameters 'json_schema' and 'min_tokens' exclude"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, object], says: str) -> None:
    check_refusal(given, says)


def check_refusal(given: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_sampling_params(json.dumps(given))
    assert says in error.value.message
    assert error.value.code is Code.INVALID_ARG
    assert len(error.value.message) < 400


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 1},
        {"max_tokens": 2**31 - 1},
        {"temperature": 0},
        {"top_k": 2**31 - 1},
        {"top_p": 5e-324},
        {"top_p": 1.0},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"stop": json.dumps(["x" * 256] * 64)},
        {"stop_token_ids": json.dumps([0, 2**31 - 1])},
        {"stop_token_ids": json.dumps(list(range(1024)))},
    ],
)
def test_the_bounds_themselves_are_allowed(given: dict[str, object]) -> None:
    (name, value), params = *given.items(), parse_sampling_params(json.dumps(given))
    read = getattr(params, name)
    if isinstance(value, str):
        assert sorted(read) == sorted(json.loads(value))
    else:
        assert read == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(list(SamplingParams.__dataclass_fields__)), JSON | JSON.map(json.dumps))
)
def test_anything_gives_options_or_a_message(given: dict[str, object]) -> None:
    parsed: SamplingParams | RequestError
    try:
        parsed = parse_sampling_params(json.dumps(given))
    except RequestError as error:
        parsed = error
    if isinstance(parsed, RequestError):
        assert any(f"'{name}'" in parsed.message for name in given)
    else:
        assert parsed.max_tokens >= ("max_tokens" in given)
        assert 0 < parsed.top_p <= 1
        assert parsed.temperature >= 0
