from pathlib import Path

import pytest

from hiscore.api.decisions.calibration import read_calibration


def test_what_is_missing_is_as_the_model_says(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text('{"temperatures": {"choice": 1.5}, "report": {"choice": {"questions": 3}}}')
    assert read_calibration(file) == {"choice": 1.5}
    assert read_calibration(None) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"temperatures": {"choice": 0}}', '{"temperatures": {"x": 1}}']
)
def test_anything_else_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="is no calibration"):
        read_calibration(file)
    with pytest.raises(OSError, match="none"):
        read_calibration(tmp_path / "none")
