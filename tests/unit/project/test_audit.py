"""The verdict of `make audit`: what was not looked at is never called safe."""

import json
from typing import Any

import pytest

from tools.audit import verdict

SAFE = {"name": "numpy", "version": "1.26.4", "vulns": []}
BAD = {"name": "torch", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
SKIPPED = {"name": "hiscore", "skip_reason": "not found"}
ONE = "NOT AUDITED: the index has no advisories for 1 of 2 packages:\nhiscore"


@pytest.mark.parametrize(
    ("packages", "says", "code", "strict_code"),
    [
        ([SAFE, SAFE], "no known vulnerabilities in 2 packages", 0, 0),
        ([SAFE, BAD], "torch 1.0: PYSEC-1, fixed in 1.1\n1 known vulnerabilities in 2 packages", 1, 1),
        (
            [BAD, SKIPPED],
            f"torch 1.0: PYSEC-1, fixed in 1.1\n1 known vulnerabilities in 1 packages\n{ONE}",
            1,
            1,
        ),
        ([SAFE, SKIPPED], f"no known vulnerabilities in 1 packages\n{ONE}", 0, 1),
        ([SKIPPED], "NOT AUDITED: the index has no advisories for 1 of 1 packages:\nhiscore", 0, 1),
        (None, "NOT AUDITED: the advisories of no package could be fetched: refused", 0, 1),
    ],
)
def test_verdict(packages: list[dict[str, Any]] | None, says: str, code: int, strict_code: int) -> None:
    report = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    text, found = verdict(report, "Traceback\nrefused\n", strict=False)
    assert found == code
    assert text == says
    assert verdict(report, "", strict=True)[1] == strict_code
