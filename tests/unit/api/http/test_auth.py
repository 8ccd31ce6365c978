from pathlib import Path

import pytest
from starlette.datastructures import Headers

from hiscore.api.http.auth import Keys
from hiscore.api.http.errors import ApiError


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys"
    path.write_text("\ufefffirst\n\n  second  \n")
    return Keys(path)


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer second"},
        {"authorization": "Bearer  second "},
        {"api-key": "first"},
    ],
)
def test_a_known_key_passes(keys: Keys, header: dict[str, str]) -> None:
    keys.check(Headers(header))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"authorization": "Bearer third"},
        {"authorization": "Bearer firs"},
        {"authorization": "Bearer "},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"authorization": "Bearer # ours"},
        {"authorization": "Bearer third", "api-key": "first"},
        {"api-key": ""},
    ],
)
def test_anything_else_does_not(keys: Keys, header: dict[str, str]) -> None:
    with pytest.raises(ApiError, match="no valid API key") as caught:
        keys.check(Headers(header))
    assert caught.value.status == 401


def test_without_a_file_everyone_passes() -> None:
    Keys(None).check(Headers({}))


@pytest.mark.parametrize("text", ["", "\n\n", "# none yet\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ValueError, match="has no API key"):
        Keys(tmp_path / "keys")
    with pytest.raises(OSError, match="missing"):
        Keys(tmp_path / "missing")
