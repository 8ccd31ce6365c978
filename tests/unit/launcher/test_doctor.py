"""The report for bug reports: complete, without secrets, and there even if a part of it fails."""

from collections.abc import Iterator

import pytest

import hiscore
from hiscore.launcher import doctor


def test_it_says_what_a_bug_report_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_ITEMS", "77")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = doctor.report()
    for expected in (
        f"hiscore {hiscore.__version__}, tritonserver 2.51",
        "torch ",
        "GPU: ",
        "/dev/shm: ",
        "control groups considered",
        "limit of open files",
        "MAX_ITEMS=77",
        "HTTP_PORT 8000: ",
    ):
        assert expected in text
    assert "cannot be told" not in text
    assert "hf_secret" not in text


def test_a_part_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PORT", "eighty")

    def breaks() -> Iterator[str]:
        yield "so far"
        raise OSError("no such device")

    text = doctor.report((breaks, doctor.settings, doctor.memory))
    assert "so far\ncannot be told: OSError: no such device" in text
    assert "cannot be told: ValidationError" in text
    assert "memory: " in text
