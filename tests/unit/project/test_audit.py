"""The verdict of `make audit`: what was not looked at is never called safe."""

import json
from typing import Any

import pytest

from tools.audit import verdict

SAFE = {"name": "numpy", "version": "1.26.4", "vulns": []}
BAD = {"name": "torch", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
SKIPPED = {"name": "hiscore", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "says", "code", "strict_code"),
    [
        ([SAFE, SAFE], "no known vulnerability in 2 packages", 0, 0),
        ([SAFE, BAD], "torch 1.0: PYSEC-1, fixed in 1.1\n1 known", 1, 1),
        ([BAD, SKIPPED], "torch 1.0: PYSEC-1", 1, 1),
        ([SAFE, SKIPPED], "1 packages; 1 are not on the index", 0, 1),
        ([SKIPPED, SKIPPED], "NOT AUDITED: the index has no advisories for 2 of 2", 0, 1),
        (None, "NOT AUDITED: the advisories could not be fetched", 0, 1),
    ],
)
def test_verdict(packages: list[dict[str, Any]] | None, says: str, code: int, strict_code: int) -> None:
    report = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    text, found = verdict(report, strict=False)
    assert found == code
    assert says in text
    assert verdict(report, strict=True)[1] == strict_code
