import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from hiscore.api.chat.sampling import GenerationRequest, Sampling
from hiscore.api.chat.structured_outputs import StructuredOutputs, confinement
from hiscore.api.http.errors import ApiError
from hiscore.decoding.requests.sampling_params import parse_sampling_params

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ODD = ["a|b", "(", "a b", "-~#&", "\\d", "[x]", "^$", "/", "\n", "::=", "é🍎", '"', "a.c", "{2}", "\x01", "%"]


def confined(**wanted: Any) -> dict[str, str]:
    return confinement(msgspec.convert(wanted, StructuredOutputs))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
        ({"json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}),
        ({"json": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
        ({"json_object": True}, {"json_schema": '{"type": "object"}'}),
        ({"choice": ["yes", "no"], "disable_any_whitespace": False}, {"regex": "yes|no"}),
    ],
)
def test_each_becomes_a_parameter_of_decode(wanted: dict[str, Any], expected: dict[str, str]) -> None:
    found = confined(**wanted)
    assert found == expected
    assert parse_sampling_params(json.dumps(found)).has_grammar


def accepts(source: str, text: str) -> bool:
    """Whether llguidance takes this text, byte by byte, as a whole."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, source)
    return bool(matcher.consume_tokens(tokenizer.tokenize_str(text)) and matcher.is_accepting())


def test_choices_are_themselves_and_nothing_else() -> None:
    source = grammar_from("regex", confined(choice=ODD)["regex"])
    for text in ODD:
        assert accepts(source, text), text
    for text in ("a", "b", "ab", "1", "x", "", "aa", "abc", " ", "e", "\\", "{"):
        assert not accepts(source, text), text
    # The control: not escaped, they are expressions.
    assert accepts(grammar_from("regex", "a.c"), "abc")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({}, "exactly one of its fields, not 0"),
        ({"regex": "a", "choice": ["b"]}, "exactly one of its fields, not 2"),
        ({"choice": []}, "'structured_outputs.choice' is empty"),
        ({"choice": ["ä" * 11_000]}, "at most 65536"),
    ],
)
def test_what_cannot_be_followed_is_refused(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(ApiError, match=re.escape(says)):
        confined(**wanted)


def test_another_field_that_confines_is_refused_beside_it(tmp_path: Path) -> None:
    def parameters(**given: Any) -> dict[str, Any]:
        request = msgspec.convert({"structured_outputs": {"regex": "a"}, **given}, GenerationRequest)
        return Sampling(tmp_path).parameters(request)

    assert parameters(response_format={"type": "text"})["regex"] == "a"
    for name, value in (("regex", "b"), ("ebnf", "b"), ("response_format", {"type": "json_object"})):
        with pytest.raises(ApiError, match=f"'structured_outputs' and '{name}' exclude each other"):
            parameters(**{name: value})
