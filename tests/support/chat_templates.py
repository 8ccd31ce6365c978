"""Chat templates as families have them, cut down to what tests need, and conversations with a text anywhere."""

import json
from typing import Any

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# As Qwen3's: tools in the system's message, reasoning of the past left out, reasoning off on request.
QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nYou may call functions. They are within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nWrite calls as\\n<tool_call>\\n{\\"name\\": <function-name>, " }}
    {{- "\\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- (call.function.arguments | tojson) ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

# As Qwen3-Coder's: it writes names of callers between the brackets of tags.
TAGS = """{% for tool in tools or [] %}{% for name, value in tool.function.items() %}
<{{ name }}>{{ value }}</{{ name }}>{% if value is mapping %}
{% for key in value %}<{{ key }}>{% endfor %}{% endif %}{% endfor %}{% endfor %}
{% for message in messages %}<|im_start|>{{ message.role }} {{ message.name }}
{{ message.content | trim }}<|im_end|>
{% endfor %}<|im_start|>assistant
<think>
"""

MISTRAL = """{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}{% if message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- elif message.tool_calls %}[TOOL_CALLS]{{ message.tool_calls | tojson }}</s>
{%- else %}{{ message.content }}</s>{% endif %}{% endfor %}"""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks it up",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
    },
}
SYSTEM, USER = (
    {"role": "system", "content": "Be  brief."},
    {"role": "user", "content": " What is <b>it</b>?\n"},
)


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def called(*numbers: int) -> dict[str, Any]:
    """A message of calls whose ids are as long as Mistral wants them."""
    functions = {n: {"name": "look", "arguments": {"where": "苹果", "n": f"pick {n}"}} for n in numbers}
    calls = [{"type": "function", "id": f"call0000{n}", "function": each} for n, each in functions.items()]
    return said("", tool_calls=calls)


def result(number: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": f"an apple {number}",
        "tool_call_id": f"call0000{number}",
        "name": "look",
    }


TOLD: list[dict[str, Any]] = [SYSTEM, USER, called(1), result(1), said("An apple."), USER]
CALL, FUNCTION = ("messages", 2, "tool_calls", 0, "function"), ("tools", 0, "function")
FIELDS: dict[str, tuple[Any, ...]] = {
    "content": ("messages", 1, "content"),
    "system": ("messages", 0, "content"),
    "answer": ("messages", 4, "content"),
    "result": ("messages", 3, "content"),
    "name": ("messages", 1, "name"),
    "tool name": (*FUNCTION, "name"),
    "tool description": (*FUNCTION, "description"),
    "tool parameter": (*FUNCTION, "parameters", "properties"),
    "tool key": FUNCTION,
    "call name": (*CALL, "name"),
    "arguments": (*CALL, "arguments"),
    "variable": ("variables", "enable_thinking"),
    "reasoning": ("messages", 2, "reasoning_content"),
    "reasoning of an answer": ("messages", 4, "reasoning_content"),
}


def attacked(field: str, attack: str) -> tuple[list[dict[str, Any]], list[Any], dict[str, Any]]:
    """Messages, tools and variables with a text in one field."""
    *path, last = FIELDS[field]
    given = json.loads(json.dumps({"messages": TOLD, "tools": [TOOL], "variables": {}}))
    within = given
    for step in path:
        within = within[step]
    match field:
        case "tool key":
            within[last][attack] = attack
        case "tool parameter":
            within[last] = {attack: {"type": "string", "enum": [attack]}}
        case "arguments":
            within[last] = {attack: [attack]}
        case _:
            within[last] = attack
    return given["messages"], given["tools"], given["variables"]
