"""Calls of tools are found in text that comes in any pieces; what only looks like one stays text."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.prompts.answer_parts import Content, Part, ToolCall
from hiscore.prompts.tool_calls import (
    FORCED,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    ToolCallReader,
    ToolFormat,
    format_of,
)
from tests.support import chat_templates


def read(tool_format: ToolFormat, pieces: Sequence[str]) -> list[Part]:
    """All parts, those of text joined."""
    reader = ToolCallReader(tool_format)
    parts: list[Part] = []
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.finish()]:
        if isinstance(part, Content) and parts and isinstance(parts[-1], Content):
            parts[-1] = Content(parts[-1].text + part.text)
        else:
            parts.append(part)
    return parts


WEATHER = ToolCall("weather", '{"city": "Zürich <b>"}')
TIME = ToolCall("time", "{}")
IN_MARKS = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
OFFERING_TIME = replace(LLAMA3, offered=frozenset(["time"]))
ANSWERS: list[tuple[ToolFormat, str, list[Part]]] = [
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich <b>"}}\n</tool_call>', [WEATHER]),
    (
        HERMES,
        'Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Zürich <b>"}}</tool_call>\n'
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        [Content("Let me see. "), WEATHER, TIME],
    ),
    (HERMES, "1 < 2 <tool", [Content("1 < 2 <tool")]),
    (HERMES, "<tool_call>{}</tool_call> sorry", [Content("<tool_call>{}</tool_call> sorry")]),
    (HERMES, '<tool_call>{"name": "time"', [Content('<tool_call>{"name": "time"')]),
    (HERMES, '<tool_call>{"name": "time"}', [TIME]),
    (HERMES, '<tool_call>{"name": "time", "arguments": [1]}</tool_call>', [
        Content('<tool_call>{"name": "time", "arguments": [1]}</tool_call>')]),
    (LLAMA3, '{"name": "weather", "parameters": {"city": "Zürich <b>"}}', [WEATHER]),
    (LLAMA3, '\n{"name": "time", "parameters": {}}; {"name": "time", "parameters": {}}', [TIME, TIME]),
    (LLAMA3, '{"name": "time"}', [Content('{"name": "time"}')]),
    (LLAMA3, '{"name": "time", "parameters": {}} {"name": "me", "age": 3}', [
        Content('{"name": "time", "parameters": {}} {"name": "me", "age": 3}')]),
    (OFFERING_TIME, '{"name": "time", "parameters": {}}', [TIME]),
    (OFFERING_TIME, '{"name": "Alice", "parameters": {}}', [Content('{"name": "Alice", "parameters": {}}')]),
    (HERMES, "\n\n" + IN_MARKS + " \n", [Content("\n\n"), TIME]),
    (HERMES, IN_MARKS + "Yes\n\nNo \n" + IN_MARKS, [TIME, Content("Yes\n\nNo \n"), TIME]),
    (HERMES, IN_MARKS + "\nDone\n\n a b  c\n\n- x\n", [TIME, Content("\nDone\n\n a b  c\n\n- x\n")]),
    (HERMES, IN_MARKS + "\n <tool_call>{}</tool_call>", [TIME, Content("\n <tool_call>{}</tool_call>")]),
    (LLAMA3, '{"name": "weather", "arguments": {"city": "Zürich <b>"}}', [WEATHER]),
    (HERMES, '<tool_call>{"name": "weather", "parameters": {"city": "Zürich <b>"}}</tool_call>', [WEATHER]),
    (LLAMA3, '{"is": "JSON"}', [Content('{"is": "JSON"}')]),
    (LLAMA3, 'Say {"name": "time", "parameters": {}}', [Content('Say {"name": "time", "parameters": {}}')]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Zürich <b>"}}, {"name": "time"}]', [
        WEATHER, TIME]),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Zürich <b>"}[TOOL_CALLS]time[CALL_ID]a1[ARGS]{}', [
        WEATHER, TIME]),
    (MISTRAL, "No [tools].", [Content("No [tools].")]),
    (FORCED, '[{"name": "time", "arguments": {}}]', [TIME]),
    (FORCED, '[{"name": "time", "argum', [Content('[{"name": "time", "argum')]),
    (FORCED, " ", [Content(" ")]),
    (FORCED, "[]", [Content("[]")]),
    (MISTRAL, "[TOOL_CALLS] []", [Content("[TOOL_CALLS] []")]),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "expected"), ANSWERS)
def test_calls_are_found_in_any_pieces(tool_format: ToolFormat, text: str, expected: list[Part]) -> None:
    choose = random.Random(1)
    cuts = (sorted(choose.sample(range(1, len(text)), choose.randrange(len(text)))) for _ in range(30))
    cut = ([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)] for at in cuts)
    for pieces in ([text], list(text), *cut):
        assert read(tool_format, pieces) == expected
    for call in expected:
        if isinstance(call, ToolCall):
            json.loads(call.arguments)


@pytest.mark.parametrize("value", [r'"\ud83d"', "NaN", "-Infinity", "01", '"\n"', "[" * 100_000])
def test_what_no_answer_can_hold_is_no_call(value: str) -> None:
    text = f'[{{"name": "time", "arguments": {{"at": {value}}}}}]'
    assert read(FORCED, [text]) == [Content(text)]


@pytest.mark.parametrize("value", [r'"\ud83c\udf4e"', "1e999", "48e308774289", "9" * 5_000, "1.50"])
@pytest.mark.parametrize("tool_format", [FORCED, HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS])
def test_control_whatever_is_json_is_a_call_and_stays_as_written(tool_format: ToolFormat, value: str) -> None:
    arguments = f'{{"at":{value}, "on": []}}'
    layout = tool_format.layout
    call = layout.call.replace("$quoted", '"time"').replace("$name", "time").replace("$arguments", arguments)
    text = f"{layout.before}{call}{layout.between}{call}{layout.after}"
    assert read(tool_format, [text]) == [ToolCall("time", arguments)] * 2


@given(st.text(st.sampled_from('<>tol_ca{}"[] \n')), st.sampled_from([HERMES, MISTRAL, LLAMA3, FORCED]))
def test_text_without_a_call_is_passed_through(text: str, tool_format: ToolFormat) -> None:
    for pieces in ([text], list(text)):
        assert "".join(part.text for part in read(tool_format, pieces) if isinstance(part, Content)) == text


def test_a_format_is_known_by_its_template() -> None:
    assert format_of(chat_templates.QWEN3) is HERMES
    assert format_of(chat_templates.MISTRAL) is MISTRAL
    assert format_of(chat_templates.MISTRAL + "[ARGS]") is MISTRAL_ARGS
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") is LLAMA3
    assert format_of("{{ tools }}<tool_call>\n<function=name> arguments") is None
    assert format_of("{{ tools }}") is None
    assert format_of(chat_templates.CHATML) is None
