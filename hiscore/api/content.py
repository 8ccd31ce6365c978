"""Text, JSON and parts of both that callers of decisions send, as text for a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from hiscore.api.http.errors import bad_request
from hiscore.api.wire import Ignored

MAX_JSON_LEVELS = 32
MAX_JSON_VALUES = 100_000

Json: TypeAlias = str | dict[str, Any] | list[Any]
"""Text, or JSON that becomes text."""


class InputText(msgspec.Struct, tag="input_text", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: Ignored = None


class InputJson(msgspec.Struct, tag="input_json", forbid_unknown_fields=True):
    data: dict[str, Any] | list[dict[str, Any]]


class OutputText(msgspec.Struct, tag="output_text"):
    text: str


class Refusal(msgspec.Struct, tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag="input_image"):
    """Refused."""


class InputFile(msgspec.Struct, tag="input_file"):
    """Refused."""


class InputAudio(msgspec.Struct, tag="input_audio"):
    """Refused."""


Part: TypeAlias = InputText | InputJson | OutputText | Refusal | InputImage | InputFile | InputAudio


def text_of(content: Json, param: str) -> str:
    """Text as it is, JSON as JSON; raises `ApiError`: the JSON is nested too deeply, or has too many values."""
    if isinstance(content, str):
        return content
    _check_size(content, param)
    return msgspec.json.encode(content).decode()


def text_of_parts(content: str | Sequence[Part], param: str) -> str:
    """Text, or parts of text and JSON, with an empty line between them; raises `ApiError` for other parts."""
    if isinstance(content, str):
        return content
    return "\n\n".join(_text_of_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _text_of_part(part: Part, param: str) -> str:
    match part:
        case InputText(text=text) | OutputText(text=text):
            return text
        case Refusal(refusal=text):
            return text
        case InputJson(data=data):
            return text_of(data, param)
    what = part.__struct_config__.tag
    raise bad_request(f"'{param}' is '{what}': this server's models read text and JSON alone", param)


def _check_size(content: Json, param: str) -> None:
    level: list[Any] = [content]
    values = 0
    for _ in range(MAX_JSON_LEVELS):
        level = [child for each in level for child in (each.values() if isinstance(each, Mapping) else each)]
        values += len(level)
        if values > MAX_JSON_VALUES:
            raise bad_request(f"'{param}' holds more than {MAX_JSON_VALUES} values", param)
        level = [each for each in level if isinstance(each, (Mapping, list))]
        if not level:
            return
    raise bad_request(f"'{param}' is nested more than {MAX_JSON_LEVELS} levels deep", param)
