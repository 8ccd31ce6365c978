"""Chat templates as families of checkpoints have them, cut down to what the tests need of them."""

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
