"""docs/faults.md names tests that exist, one for every fault."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CELL = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(document: str) -> list[str]:
    lines = [line for line in document.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| fault |")]


def missing(document: str) -> list[str]:
    def exists(row: str) -> bool:
        found = CELL.search(row.split("|")[3])
        if not found or not (ROOT / found.group(1)).is_file():
            return False
        return bool(re.search(rf"^def {found.group(2)}\(", (ROOT / found.group(1)).read_text(), re.MULTILINE))

    return [row for row in rows(document) if not exists(row)]


def test_every_fault_names_a_test_that_exists() -> None:
    document = (ROOT / "docs/faults.md").read_text()
    assert len(rows(document)) > 30
    assert missing(document) == []


def test_control_a_test_that_does_not_exist_is_noticed() -> None:
    document = (ROOT / "docs/faults.md").read_text()
    renamed = document.replace("::test_a_full_queue_is_unavailable", "::test_a_full_queue")
    assert len(missing(renamed)) == 1
    assert len(missing(document + "| something else | bad | |\n")) == 1
