"""Calls of tools are found in text that comes in any pieces; what only looks like one stays text."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.prompts.answer_parts import Content, Part, ToolCall
from hiscore.prompts.tool_calls import FORCED, HERMES, LLAMA3, MISTRAL, ToolCallReader, ToolFormat, format_of
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
    (LLAMA3, '\n{"name": "time", "parameters": {}}; {"name": "time"}', [TIME, TIME]),
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
def test_calls_are_found_by_letters_too(tool_format: ToolFormat, text: str, expected: list[Part]) -> None:
    assert read(tool_format, [text]) == expected
    assert read(tool_format, list(text)) == expected
    for call in expected:
        if isinstance(call, ToolCall):
            json.loads(call.arguments)


@pytest.mark.parametrize("value", [r'"\ud83d"', "NaN", "-Infinity", "1e999", "9" * 5_000])
def test_what_no_answer_can_hold_is_no_call(value: str) -> None:
    text = f'[{{"name": "time", "arguments": {{"at": {value}}}}}]'
    assert read(FORCED, [text]) == [Content(text)]


def test_control_a_whole_surrogate_pair_is_a_character() -> None:
    text = r'[{"name": "time", "arguments": {"at": "\ud83c\udf4e"}}]'
    assert read(FORCED, [text]) == [ToolCall("time", '{"at": "🍎"}')]


@given(st.text(st.sampled_from('<>tol_ca{}"[] \n')), st.sampled_from([HERMES, MISTRAL, LLAMA3, FORCED]))
def test_text_without_a_call_is_passed_through(text: str, tool_format: ToolFormat) -> None:
    for pieces in ([text], list(text)):
        assert "".join(part.text for part in read(tool_format, pieces) if isinstance(part, Content)) == text


def test_a_format_is_known_by_its_template() -> None:
    assert format_of(chat_templates.QWEN3) is HERMES
    assert format_of(chat_templates.MISTRAL) is MISTRAL
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") is LLAMA3
    assert format_of("{{ tools }}<tool_call>\n<function=name> arguments") is None
    assert format_of("{{ tools }}") is None
    assert format_of(chat_templates.CHATML) is None
