from typing import Any

import pytest

from hiscore.api.content import InputImage, InputJson, InputText, Refusal, text_of, text_of_parts
from hiscore.api.http.errors import ApiError


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_text_is_text_and_json_json() -> None:
    assert text_of('{"a"', "x") == '{"a"'
    assert text_of({"a": ["é", None, 1.5]}, "x") == '{"a":["é",null,1.5]}'
    assert text_of_parts([InputText("a"), InputJson([{"b": 1}]), Refusal("c")], "x") == 'a\n\n[{"b":1}]\n\nc'
    assert text_of_parts("a", "x") == "a"


def test_what_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(ApiError, match=r"'x\[1\]' is 'input_image'"):
        text_of_parts([InputText("a"), InputImage()], "x")


def test_json_is_bounded() -> None:
    assert text_of(nested(32), "x")
    with pytest.raises(ApiError, match="more than 32 levels"):
        text_of(nested(33), "x")
    with pytest.raises(ApiError, match="more than 100000 values"):
        text_of([[0] * 50_000, [0] * 50_001], "x")
