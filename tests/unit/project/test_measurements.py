"""Commands that the pages on measurements name can be run."""

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "perf").rglob("*.md")]
COMMIT = re.compile(r"\b[0-9a-f]{7,10}\b")


def gone(page: str) -> list[str]:
    """Modules of perf/ that do not exist, in lines that name no commit at which they did."""
    return [
        name
        for line in page.splitlines()
        if not COMMIT.search(line)
        for name in re.findall(r"\bperf\.[a-z]\w*(?:\.[a-z]\w*)*", line)
        if not exists(name)
    ]


def exists(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_measurements_that_pages_name_exist() -> None:
    named = {str(page.relative_to(ROOT)): gone(page.read_text()) for page in PAGES}
    assert {page: names for page, names in named.items() if names} == {}


def test_control_a_script_that_is_gone_is_noticed_unless_its_commit_is_named() -> None:
    assert find_spec("perf.scoring.forward")
    assert gone("`python -m perf.scoring.forward --out DIR`, `perf.compare`") == []
    assert gone("`python -m perf.forward --out DIR`") == ["perf.forward"]
    assert gone("`python -m perf.forward --out DIR`, until 4103db7b") == []
