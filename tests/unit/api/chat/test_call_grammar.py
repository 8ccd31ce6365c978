"""The grammar of calls takes what is a call of a tool by the tool's own schema, and nothing else."""

import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from tokenizers import AddedToken

from hiscore.api.chat.call_grammar import LEXEME
from hiscore.api.chat.messages import Tool
from hiscore.api.chat.tools import ToolUse, tool_use
from hiscore.api.http.errors import ApiError, from_models
from hiscore.decoding.requests.grammar import GrammarCompiler
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.errors import RequestError
from hiscore.prompts.answer_parts import Content, Part
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.tool_calls import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, ToolCallReader, ToolFormat
from hiscore_client import InvalidRequest
from tests.support import tiny_tokenizers

BYTES = LLTokenizer("byte")
LEAF = {"enum": [1]}
OTHER_LEAF = {"enum": ["one"]}


def object_of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def use_of(*schemas: Any, strict: bool | None = None, choice: Any = "required", **given: Any) -> ToolUse:
    """The use of tools f0, f1, ... with these parameters."""
    offered = [
        {"type": "function", "function": {"name": f"f{index}", "parameters": schema, "strict": strict}}
        for index, schema in enumerate(schemas)
    ]
    tool_format = given.pop("tool_format", None)
    tokenizer = SimpleNamespace(token_at_start=given.pop("token_of", lambda mark: None))
    conversations = SimpleNamespace(takes_tools=True, tool_format=tool_format, tokenizer=tokenizer)
    tools = msgspec.convert(offered, type=list[Tool])
    return tool_use(tools, choice, given.pop("parallel", True), cast(Conversations, conversations), **given)


def takes(use: ToolUse, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar_from("ebnf", use.grammar or ""), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(BYTES.tokenize_str(text)) and matcher.is_accepting())


def calls(*arguments: Any) -> str:
    return json.dumps([{"name": f"f{index}", "arguments": each} for index, each in enumerate(arguments)])


REFERRING: list[tuple[dict[str, Any], Any, Any]] = [
    ({"$defs": {"A": LEAF}, **object_of(a={"$ref": "#/$defs/A"})}, {"a": 1}, {"a": 2}),
    ({"definitions": {"A": LEAF}, **object_of(a={"$ref": "#/definitions/A"})}, {"a": 1}, {"a": 2}),
    (object_of(a=LEAF, b={"$ref": "#/properties/a"}), {"a": 1, "b": 1}, {"a": 1, "b": 2}),
    (
        {**object_of(a=LEAF), "properties": {"a": LEAF, "kids": {"type": "array", "items": {"$ref": "#"}}}},
        {"a": 1, "kids": [{"a": 1, "kids": []}]},
        {"a": 1, "kids": [[{"name": "f0", "arguments": {"a": 1}}]]},
    ),
    ({"$defs": {"A": object_of(a=LEAF)}, "$ref": "#/$defs/A"}, {"a": 1}, {"a": 2}),
    ({"properties": {"a": LEAF}, "required": ["a"]}, {"a": 1}, False),
    ({"type": ["object", "null"], "properties": {"a": LEAF}}, {"a": 1}, None),
    ({"anyOf": [object_of(a=LEAF), {"type": "string"}]}, {"a": 1}, "a"),
    (None, {"any": [1]}, None),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), REFERRING)
def test_a_reference_means_the_tools_own_schema_and_arguments_are_an_object(
    schema: Any, right: Any, wrong: Any
) -> None:
    assert takes(use_of(schema), calls(right))
    assert not takes(use_of(schema), calls(wrong))


def test_tools_may_name_their_definitions_alike() -> None:
    schemas = [{"$defs": {"A": leaf}, **object_of(a={"$ref": "#/$defs/A"})} for leaf in (LEAF, OTHER_LEAF)]
    assert takes(use_of(*schemas), calls({"a": 1}, {"a": "one"}))
    assert not takes(use_of(*schemas), calls({"a": "one"}, {"a": 1}))
    assert not takes(use_of(*schemas, parallel=False), calls({"a": 1}, {"a": "one"}))
    assert takes(use_of(*schemas, parallel=False), calls({"a": 1}))


@pytest.mark.parametrize(
    "name", ['a"b', "é🍎", "</tool_call>", "<|im_end|>", "a\\b\n", "$arguments", "a$name", "::= start:"]
)
def test_a_function_may_have_any_name(name: str) -> None:
    tool = {"type": "function", "function": {"name": name}}
    tokens = SimpleNamespace(token_at_start=lambda mark: 7)
    conversations = cast(
        Conversations, SimpleNamespace(takes_tools=True, tool_format=HERMES, tokenizer=tokens)
    )
    tools = msgspec.convert([tool], type=list[Tool])
    use = tool_use(tools, "required", False, conversations)
    assert takes(use, json.dumps([{"name": name, "arguments": {"a": 1}}], ensure_ascii=False))
    # Marks around calls are tokens, and what a caller names is not.
    grammar = tool_use(tools, "auto", False, conversations, "{}").grammar
    assert grammar is not None
    assert grammar.count("<[7]>") == 2


def test_a_quote_in_a_name_is_read_once() -> None:
    text = '"' + '\\"' * 9
    assert LEXEME.findall(text) == [text]


# More than the grammar can follow, and what is of the schema all the same.
BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "items": LEAF, "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
    ({"type": "string", "format": "password"}, "password"),
    ({"type": "string", "format": "uri-reference"}, "uri-reference"),
    ({"type": "string", "not": {"const": "a"}}, "not"),
    ({"type": "array", "contains": LEAF}, "contains"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, "oneOf"),
    ({"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)@[a-z]+$"}, "look-around"),
    ({"type": "string", "pattern": r"\bword"}, "lookarounds"),
    ({"type": "string", "pattern": r"(a)\1"}, "backreferences"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#/$defs/Missing"}, "Missing"),
    ({"type": "thing"}, "thing"),
    ({"type": "string", "pattern": "("}, "unclosed group"),
]


def refusal(use: ToolUse) -> ApiError | None:
    """What the caller is told of the grammar, if `decode` refuses it."""
    backend = tiny_tokenizers.llama3()
    try:
        GrammarCompiler(backend, 900, {1}).compile(SamplingParams(ebnf=use.grammar or ""))
    except RequestError as error:
        return from_models(InvalidRequest(error.message), use.words)
    return None


@pytest.mark.parametrize(("schema", "says"), BEYOND)
def test_what_a_grammar_cannot_follow_is_left_out_unless_strict(schema: Any, says: str) -> None:
    parameters = object_of(a=schema)
    assert refusal(use_of(parameters)) is None
    assert refusal(use_of(parameters, strict=False)) is None
    told = refusal(use_of(object_of(), parameters, strict=True))
    assert told is not None
    assert told.param == "tools"
    assert told.message.startswith("'tools': the parameters of 'f1': ")
    assert says in told.message


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize(("schema", "says"), WRONG)
def test_control_a_wrong_schema_is_refused_by_name(schema: Any, says: str, strict: bool | None) -> None:
    told = refusal(use_of(object_of(a=schema), strict=strict))
    assert told is not None
    assert told.message.startswith("'tools': the parameters of 'f0': ")
    assert says in told.message
    # Beside calls, the answer's is named by its own field.
    answered = use_of(object_of(), choice="auto", tool_format=HERMES, answer=json.dumps(schema))
    told = refusal(answered)
    assert told is not None
    assert (told.param, "ebnf" in told.message) == ("response_format", False)


@pytest.mark.parametrize("kind", ["string", ["array", "null"], 5])
def test_parameters_that_are_no_object_are_refused(kind: Any) -> None:
    with pytest.raises(ApiError, match="the parameters of 'f0' must be of type 'object'"):
        use_of({"type": kind})
    # A model that may call reads the schema as text: it is not checked.
    assert use_of({"type": kind}, choice="auto", tool_format=HERMES).grammar is None


ANSWERS = [object_of(name={"type": "string"}, age={"type": "integer"}), {"type": "object"}]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("tool_format", [HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS])
def test_beside_a_schema_a_model_may_call_or_answer(tool_format: ToolFormat, answer: Any) -> None:
    use = use_of(
        object_of(a=LEAF), object_of(a=OTHER_LEAF), choice="auto", tool_format=tool_format,
        answer=json.dumps(answer),
    )  # fmt: skip
    layout = tool_format.layout
    written = [
        layout.call.replace("$quoted", f'"f{index}"')
        .replace("$name", f"f{index}")
        .replace("$arguments", each)
        for index, each in enumerate(('{"a": 1}', '{"a": "one"}'))
    ]
    both = f"{layout.before}{layout.between.join(written)}{layout.after}"
    assert takes(use, both)
    assert [type(part).__name__ for part in _read(use, both)] == ["ToolCall"] * 2
    said = json.dumps({"name": "f0", "age": 3})
    assert takes(use, said)
    assert _read(use, said) == [Content(said)]
    for text in ("Well", both.replace("f1", "f2"), both.replace('"a": 1', '"a": 2'), both + "x"):
        assert not takes(use, text)


@pytest.mark.parametrize("special", [True, False])
def test_a_mark_that_is_a_token_is_that_token(special: bool) -> None:
    backend = tiny_tokenizers.llama3()
    backend.add_tokens([AddedToken(mark, special=special) for mark in ("<tool_call>", "</tool_call>")])
    begin, end = map(backend.token_to_id, ("<tool_call>", "</tool_call>"))
    use = use_of(
        {}, choice="auto", tool_format=HERMES, answer="{}", token_of=backend.token_to_id, parallel=False
    )
    grammar = GrammarCompiler(backend, backend.get_vocab_size(), {1}).compile(
        SamplingParams(ebnf=use.grammar or "")
    )
    assert grammar is not None
    text = backend.encode('\n{"name": "f0", "arguments": {}}\n', add_special_tokens=False).ids
    mask = grammar.mask()
    for token in (begin, *text, end, 1):
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert token in allowed
        if token == begin:
            assert backend.token_to_id("{") in allowed  # the answer's beginning
            assert backend.token_to_id("<") not in allowed
        mask = grammar.advance(token) if token != 1 else mask


def _read(use: ToolUse, text: str) -> list[Part]:
    assert use.format is not None
    reader = ToolCallReader(use.format)
    return [*reader.push(text), *reader.finish()]
