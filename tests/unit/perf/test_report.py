"""The report of `make bench`: tables of what was measured, and what failed."""

import json
from pathlib import Path

import pytest

from perf import report

SPREAD = {"median": 1.02, "low": 0.96, "high": 1.06}


def lines(directory: Path, **files: object) -> list[str]:
    for name, found in files.items():
        (directory / f"{name}.json").write_text(json.dumps(found))
    return report.write(directory).read_text().splitlines()


def test_windows_arms_and_batches_become_tables(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        ablations={"groups": {"overlap": {"unit": "ms", "arms": {"on": {"value": SPREAD, "ratio": SPREAD}}}}},
        forward={"device": "a GPU", "1 prompt": {"gpu_ms": 1.494, "launch_ms": 0.5, "total_ms": 1_234.5}},
        serving={
            "points": [{"name": "70/s", "p50": 6.0, "p99": 21.5, "histogram": [1, 2]}],
            "failures": ["a window"],
        },
    )
    assert found[found.index("| groups: overlap, ms | value | ratio |") + 2] == (
        "| on | 1.02 [0.96, 1.06] | 1.02 [0.96, 1.06] |"
    )
    assert "| 1 prompt | 1.49 | 0.5 | 1,234 |" in found
    assert "| 70/s | 6 | 21.5 |" in found
    assert "- **FAILED**: a window" in found


def test_a_file_without_known_columns_is_listed(tmp_path: Path) -> None:
    assert "- stages, by ids launch: 1.18" in lines(tmp_path, trace={"stages": {"by ids": {"launch": 1.18}}})


def test_there_must_be_a_result(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no result"):
        report.write(tmp_path)
