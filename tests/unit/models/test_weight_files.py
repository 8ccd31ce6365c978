"""Which files hold the weights, and what is said of an index that is none."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.models.weight_files import INDEX, SINGLE, weight_files


def write_index(directory: Path, index: Any) -> None:
    (directory / INDEX).write_text(json.dumps(index))


def test_a_single_file_goes_before_an_index(tmp_path: Path) -> None:
    assert weight_files(tmp_path) == []
    write_index(tmp_path, {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}})
    assert weight_files(tmp_path) == [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    (tmp_path / SINGLE).touch()
    assert weight_files(tmp_path) == [tmp_path / SINGLE]


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/a.safetensors", ""])
def test_an_index_names_files_beside_it_alone(name: str, tmp_path: Path) -> None:
    write_index(tmp_path, {"weight_map": {"a": "1.safetensors", "b": name}})
    with pytest.raises(ValueError, match="not an index"):
        weight_files(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=JSON | st.fixed_dictionaries({"weight_map": JSON}))
def test_any_index_is_read_or_refused(index: Any, tmp_path: Path) -> None:
    write_index(tmp_path, index)
    files = None
    with suppress(ValueError):
        files = weight_files(tmp_path)
    if files is not None:
        assert files == sorted({tmp_path / name for name in index["weight_map"].values()})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary())
def test_any_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(ValueError, match="is not an index of safetensors files"):
        weight_files(tmp_path)
