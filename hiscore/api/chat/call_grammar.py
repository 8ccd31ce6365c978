"""The grammar of an answer that calls tools, in llguidance's Lark.

Each schema is a document of its own there, since a reference such as ``#/$defs/A`` or ``#`` means the schema that
it stands in.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from hiscore.api.chat.messages import Tool
from hiscore.api.chat.structured_outputs import LENIENT, for_grammar
from hiscore.api.http.errors import bad_request
from hiscore.prompts.tool_calls import CallLayout

# Of llguidance: a small model in doubt would write white space to the end.
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# As JSON is cut into lexemes, so that a text and a schema may begin alike. A name need not close its quote.
LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"?|[:,] |.', re.DOTALL)
MARK = re.compile(r"(</?tool_call>|\[TOOL_CALLS\]|\[ARGS\])")


def grammar_of_calls(
    tools: Sequence[Tool],
    layout: CallLayout,
    several: bool,
    answer: str | None = None,
    token_of: Callable[[str], int | None] = lambda mark: None,
) -> tuple[str, dict[str, str]]:
    """Write the grammar of one call, or of `several`, and the caller's words for what `decode` says of its lines.

    Args:
        answer: The JSON schema of an answer that is no call; None: there must be a call.
        token_of: The token of a mark; None: it is text.
    """

    def plain(given: str) -> str:
        return " ".join(map(json.dumps, LEXEME.findall(given)))

    def text(given: str) -> str:
        tokens = ((piece, token_of(piece) if MARK.fullmatch(piece) else None) for piece in MARK.split(given))
        return " ".join(plain(piece) if token is None else f"<[{token}]>" for piece, token in tokens)

    more = f"({text(layout.between)} call)*" if several else ""
    start = f"start: {text(layout.before)} call {more} {text(layout.after)}"
    lines = [start, "call: " + " | ".join(f"call{index}" for index in range(len(tools)))]
    words: dict[str, str] = {}

    def schema(rule: str, wanted: dict[str, Any], whose: str) -> None:
        lenient = LENIENT if wanted.get("x-guidance") == LENIENT else {}
        lines.append(f"{rule}: %json {json.dumps({**wanted, 'x-guidance': ONE_LINE | lenient})}")
        words[f"parameter 'ebnf': at {len(lines)}({len(rule) + 3}): failed to compile JSON schema"] = whose

    begin, _, end = layout.call.partition("$arguments")
    for index, tool in enumerate(tools):
        name = tool.function.name
        before, quoted, behind = begin.partition("$quoted")
        if not quoted:
            before, _, behind = begin.partition("$name")
        # A name may hold what would be a mark.
        written = plain(json.dumps(name, ensure_ascii=False) if quoted else name)
        schema(f"a{index}", _parameters(tool), f"'tools': the parameters of '{name[:64]}'")
        lines.append(f"call{index}: {text(before)} {written} {text(behind)} a{index} {text(end)}")
    if answer is not None:
        lines[0] += " | answer"
        schema("answer", json.loads(answer), "'response_format'")
    return "\n".join(lines), {**words, "'ebnf'": "'tools'"}


def _parameters(tool: Tool) -> dict[str, Any]:
    function = tool.function
    given = function.parameters or {}
    kind = given.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise bad_request(f"the parameters of '{function.name[:64]}' must be of type 'object'", "tools")
    return for_grammar({**given, "type": "object"}, bool(function.strict))
