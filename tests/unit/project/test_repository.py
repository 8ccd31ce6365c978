"""The documents and the Makefile are true: they are compared with the code."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tools.drawings import DRAWINGS
from tools.house import HOUSES, draw, house, layers
from tools.models_page import page as models_page
from tools.settings_page import page as settings_page

ROOT = Path(__file__).resolve().parents[3]


def targets(makefile: str) -> set[str]:
    """Targets with a recipe or a prerequisite that a person would type."""
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def missing_files(document: str) -> list[str]:
    """Files and folders in backticks that exist neither at the root nor in hiscore/."""
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|toml|yaml|yml|json|lock))?)`", document)
    return [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "hiscore"))]


def test_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = {line.split()[1] for line in shown.splitlines() if line.startswith("  make ")}
    declared = targets((ROOT / "Makefile").read_text())
    assert {"demo", "test", "serve", "lint", "format", "help"} <= declared
    assert listed == declared


def test_phony_names_only_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert phony == targets(makefile)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("settings.md", settings_page),
        ("models.md", models_page),
        *((f"images/{name}", partial(house, package)) for name, package in HOUSES.items()),
        *((f"images/{name}", lambda draw=draw: draw().svg()) for name, draw in DRAWINGS.items()),
    ],
)
def test_a_generated_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (ROOT / "docs" / name).read_text() == page(), "run `make docs`"


def test_control_a_contract_that_changes_changes_the_drawing() -> None:
    contracts = (ROOT / "pyproject.toml").read_text()
    assert '"launcher | api",' in contracts
    assert draw(layers(contracts, "hiscore"), ROOT / "hiscore") == house("hiscore")
    swapped = contracts.replace('"launcher | api",', '"api | launcher",')
    assert draw(layers(swapped, "hiscore"), ROOT / "hiscore") != house("hiscore")


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "client/README.md"]),
    ids=lambda path: path.name,
)
def test_files_that_documents_name_exist(path: Path) -> None:
    if path.name != "CHANGELOG.md":  # of the past
        assert missing_files(path.read_text()) == []


def test_control_a_file_that_does_not_exist_is_noticed() -> None:
    document = (ROOT / "docs/architecture.md").read_text()
    assert "`scoring/packing/packing.py`" in document
    assert "`prefill/`" in document
    renamed = document.replace("`scoring/packing/packing.py`", "`scoring/pack.py`", 1).replace(
        "`prefill/`", "`fill/`", 1
    )
    assert missing_files(renamed) == ["scoring/pack.py", "fill/"]


@pytest.mark.parametrize("pages", ["*.md", "docs/**/*.md", "client/README.md", "perf/**/*.md"])
def test_links_lead_somewhere(pages: str) -> None:
    for document in ROOT.glob(pages):
        for link in re.findall(r"\]\(([^)#]+)", document.read_text()):
            if not link.startswith("http"):
                assert (document.parent / link).exists(), f"{document.name} links to {link}"


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_every_pin_is_exact(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    wrong = [
        pin for pin in pins if not re.fullmatch(r'[\w.-]+==[\w.]+( ; python_version [<>=]=? "[\d.]+")?', pin)
    ]
    assert pins
    assert wrong == []


def names_missing(tour: str) -> list[str]:
    """Names in backticks that the file of their stop of the tour does not have."""
    missing = []
    for path, text in re.findall(
        r"^\d+\. `([\w/.]+)`(.*?)(?=^\d+\. |^## |\Z)", tour, re.MULTILINE | re.DOTALL
    ):
        source = next(
            (root / path).read_text() for root in (ROOT, ROOT / "hiscore") if (root / path).exists()
        )
        names = re.findall(r"`([\w.]+)`", text)
        missing += [f"{path}: {name}" for name in names if name.split(".")[-1] not in source]
    return missing


def test_the_tour_points_at_what_is_there() -> None:
    tour = (ROOT / "docs/tour.md").read_text()
    assert len(re.findall(r"^\d+\. `", tour, re.MULTILINE)) == 12
    assert names_missing(tour) == []


def test_control_a_name_that_moved_away_is_noticed() -> None:
    assert names_missing("1. `scoring/packing/packing.py`. Read `pack`, then `unpack`.") == [
        "scoring/packing/packing.py: unpack"
    ]


def untold(settings: str, pages: str) -> set[str]:
    """Settings of the generated page that no other page speaks of."""
    rows = re.findall(r"^\| ((?:`[A-Z_\d]+`(?:, )?)+) \|", settings, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"[A-Z_\d]+", row)}
    return {name for name in names if not re.search(rf"\b{name}\b", pages)}


def test_every_setting_has_a_user_story() -> None:
    """A setting that no page tells anybody to set is a constant (CONTRIBUTING.md)."""
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md") if path.name != "settings.md"]
    assert untold(settings_page(), "\n".join(pages)) == set()


def test_control_a_setting_without_a_story_is_noticed() -> None:
    page = "| variable | default |\n| `MODEL` | x |\n| `TLS_CERT`, `TLS_KEY` | none |\n"
    assert untold(page, "Set MODEL and TLS_CERT. MY_TLS_KEY is another.") == {"TLS_KEY"}
