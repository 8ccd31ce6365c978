"""Tools and reasoning in a chat: a small model whose template is Qwen3's, and which a grammar makes call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import AddedToken

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.tokenization.file import read_backend
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.server.sse import all_events
from tests.support import chat_templates, tiny_models, tiny_tokenizers

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Is it a fruit?"}]
NAMES = ("look", "say")
PARAMETERS = {
    "type": "object",
    "$defs": {"What": {"enum": ["apple", "hammer"]}},
    "properties": {"what": {"$ref": "#/$defs/What"}},
    "required": ["what"],
    "additionalProperties": False,
}
FUNCTION = {"description": "Does it", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": {"name": name, **FUNCTION}} for name in NAMES]
# A model with random weights would begin to reason, and hardly ever end.
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}
BODY = {"messages": MESSAGES, "tools": TOOLS, "temperature": 1, "seed": 1, "max_tokens": 200, **AT_ONCE}
MARKS = "<think>", "</think>"


@pytest.fixture(scope="module")
def decode(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    directory = tiny_models.make("llama", tmp_path_factory.mktemp("tiny-tools"))
    (directory / "chat_template.jinja").write_text(chat_templates.QWEN3 + "{% if open %}<think>\n{% endif %}")
    tokenizer = tiny_tokenizers.train(tiny_tokenizers.smollm2(), tiny_models.VOCABULARY - len(MARKS))
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return start_server(tiny_tokenizers.save(tokenizer, directory), models="decode")


@pytest.fixture(scope="module")
def api(decode: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_of(decode, tmp_path_factory.mktemp("api") / "api.log") as running:
        yield running


def check(calls: list[Any], names: tuple[str, ...]) -> None:
    for made in calls:
        assert made["type"] == "function"
        assert made["id"].startswith("call_")
        assert made["function"]["name"] in names
        assert json.loads(made["function"]["arguments"])["what"] in ("apple", "hammer")
    assert len({made["id"] for made in calls}) == len(calls)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", NAMES), ({"type": "function", "function": {"name": "say"}}, ("say",))],
)
def test_a_call_can_be_demanded(api: Api, choice: Any, names: tuple[str, ...]) -> None:
    body = {**BODY, "tool_choice": choice, "parallel_tool_calls": False}
    (answer,) = call(api, CHAT, body).json["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    check(answer["message"]["tool_calls"], names)
    assert len(answer["message"]["tool_calls"]) == 1
    chunks = [choice for each in all_events(api, CHAT, **body) for choice in each["choices"]]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    streamed = [made for each in chunks for made in each["delta"].get("tool_calls", [])]
    check(streamed, names)
    assert [made["index"] for made in streamed] == [0]
    assert [made["function"] for made in streamed] == [
        made["function"] for made in answer["message"]["tool_calls"]
    ]
    assert not any(each["delta"].get("content") for each in chunks)


def test_a_call_is_found_in_a_text(api: Api) -> None:
    """As a trained model writes it by itself; here a regular expression does."""
    written = (
        r'Well\. <tool_call>\n\{"name": "look", "arguments": \{"what": "(apple|hammer)"\}\}\n</tool_call>'
    )
    body = {**BODY, "regex": written}
    (answer,) = call(api, CHAT, body).json["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == "Well. "
    check(answer["message"]["tool_calls"], ("look",))
    # The control: without tools the same text is the answer.
    (plain,) = call(api, CHAT, {**body, "tool_choice": "none"}).json["choices"]
    assert plain["message"]["content"].startswith("Well. <tool_call>")
    assert (plain["finish_reason"], "tool_calls" in plain["message"]) == ("stop", False)
    chunks = [choice for each in all_events(api, CHAT, **body) for choice in each["choices"]]
    assert "".join(each["delta"].get("content", "") for each in chunks) == "Well. "
    check([made for each in chunks for made in each["delta"].get("tool_calls", [])], ("look",))


YES = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["Yes."]}}}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "a schema": ({"response_format": YES}, '"Yes."'),
    "an expression": ({"regex": r"Yes\."}, "Yes."),
    "a choice": ({"structured_outputs": {"choice": ["Yes."]}}, "Yes."),
    "a stop": ({"regex": r"Yes\.", "stop": "e"}, "Y"),
    "a call": ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, ""),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("begun", [True, False])
def test_what_confines_an_answer_leaves_its_reasoning_alone(
    api: Api, decode: Server, form: str, begun: bool
) -> None:
    wishes, content = FORMS[form]
    # The end of the reasoning is likely enough to come, and so is "e" before it.
    tokenizer = read_backend(decode.checkpoint)
    letter, begin, end = map(tokenizer.token_to_id, ("e", *MARKS))
    bias = {letter: 6.5, end: 3.5} if begun else {begin: 100, letter: 6.5, end: 3.5}
    body = {
        "messages": MESSAGES,
        "temperature": 1,
        "seed": 5,
        "max_tokens": 400,
        "logit_bias": bias,
        **wishes,
    }
    body["chat_template_kwargs"] = {"open": begun}
    (answer,) = call(api, CHAT, body).json["choices"]
    message = answer["message"]
    assert "e" in message["reasoning_content"]
    assert not any(mark in message["reasoning_content"] for mark in MARKS)
    chunks = [choice["delta"] for each in all_events(api, CHAT, **body) for choice in each["choices"]]
    assert "".join(each.get("reasoning_content", "") for each in chunks) == message["reasoning_content"]
    if form == "a call":
        assert answer["finish_reason"] == "tool_calls"
        check(message["tool_calls"], NAMES)
        return
    assert (message["content"], answer["finish_reason"]) == (content, "stop")
    assert "".join(each.get("content", "") for each in chunks) == content
    # The control: at once, with the reasoning switched off or not told apart.
    for other in (AT_ONCE, {"separate_reasoning": False}):
        (answer,) = call(api, CHAT, {**body, **other}).json["choices"]
        assert answer["message"]["content"] == content
        assert "reasoning_content" not in answer["message"]


def test_a_forced_text_may_spell_the_end(api: Api) -> None:
    text = "A <|im_end|> B <think>"
    body = {
        "messages": MESSAGES,
        "structured_outputs": {"choice": [text]},
        "temperature": 0,
        "max_tokens": 60,
        **AT_ONCE,
    }
    (answer,) = call(api, CHAT, body).json["choices"]
    assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_beside_a_form_of_the_answer_the_model_may_call(api: Api, choice: str) -> None:
    answer = {"name": "answer", "schema": {"enum": ["yes", "no"]}, "strict": True}
    form = {"response_format": {"type": "json_schema", "json_schema": answer}, "tool_choice": choice}
    body = {**BODY, **form, "parallel_tool_calls": False}
    found = [call(api, CHAT, {**body, "seed": seed}).json["choices"][0] for seed in range(4)]
    for each in found:
        if calls := each["message"].get("tool_calls"):
            check(calls, NAMES)
        else:
            assert json.loads(each["message"]["content"]) in ("yes", "no")
    kinds = {each["finish_reason"] for each in found}
    assert kinds <= {"tool_calls", "stop"} if choice == "auto" else kinds == {"tool_calls"}
