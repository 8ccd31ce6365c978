"""Parts of wire formats."""

import pytest

from hiscore.api.http.errors import ApiError
from hiscore.api.wire import ModelNames, exactly_one, usage


def test_any_name_is_taken_unless_names_are_set() -> None:
    names = ModelNames("", "Some-Model")
    assert names.names == ["Some-Model"]
    assert names.check(None) == "Some-Model"
    assert names.check("gpt-9") == "gpt-9"


def test_names_that_are_set_are_the_only_ones() -> None:
    names = ModelNames(" first, second ,", "Some-Model")
    assert names.names == ["first", "second"]
    assert names.check(None) == names.first == "first"
    assert names.check("second") == "second"
    for unknown in ("Some-Model", "", "First"):
        with pytest.raises(ApiError, match="does not exist: known are first, second") as caught:
            names.check(unknown)
        assert (caught.value.status, caught.value.param) == (404, "model")


def test_exactly_one() -> None:
    assert exactly_one({"a": None, "b": ""}) == ("b", "")
    for given in ({"a": None, "b": None}, {"a": 1, "b": 0}):
        with pytest.raises(ApiError, match="exactly one of 'a' and 'b' is needed") as caught:
            exactly_one(given)
        assert caught.value.status == 400


def test_usage_adds_up() -> None:
    counted = usage(7, 5)
    assert counted.prompt_tokens + counted.completion_tokens == counted.total_tokens == 7
    assert counted.prompt_tokens_details == {"cached_tokens": 5}
