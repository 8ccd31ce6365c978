"""docs/faults.md names tests that exist, one for every fault."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CELL = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(document: str) -> list[str]:
    lines = [line for line in document.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| fault |")]


def is_defined(file: Path, test: str) -> bool:
    return file.is_file() and bool(re.search(rf"^def {test}\(", file.read_text(), re.MULTILINE))


def missing(document: str) -> list[str]:
    def exists(row: str) -> bool:
        named = CELL.findall(row.split("|")[3])
        return bool(named) and all(is_defined(ROOT / file, test) for file, test in named)

    return [row for row in rows(document) if not exists(row)]


def test_every_fault_names_a_test_that_exists() -> None:
    document = (ROOT / "docs/faults.md").read_text()
    assert len(rows(document)) > 30
    assert missing(document) == []


def test_control_a_test_that_does_not_exist_is_noticed() -> None:
    document = (ROOT / "docs/faults.md").read_text()
    renamed = document.replace("::test_a_full_queue_is_unavailable", "::test_a_full_queue")
    assert len(missing(renamed)) == 1
    # Not only the first of a row.
    assert len(missing(document.replace("::test_a_grammar_has_a_limit_of_its_size", "::test_gone"))) == 1
    assert len(missing(document + "| something else | bad | |\n")) == 1
