"""The launcher's arguments, and variables of make that nothing reads."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hiscore
from hiscore.launcher.arguments import check_variables
from hiscore.launcher.errors import LaunchError
from tests.support.timeouts import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
MAKE = ["make", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed", "serve"]


def launcher(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hiscore.launcher", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.slow
def test_help_names_every_setting_and_starts_nothing() -> None:
    done = launcher("--help")
    assert done.returncode == 0
    for text in ("--check", "--version", "HTTP_PORT (default: 8000)", "MAX_CONTEXT"):
        assert text in done.stdout


@pytest.mark.slow
def test_the_version() -> None:
    done = launcher("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"hiscore {hiscore.__version__} (triton ")


@pytest.mark.slow
def test_an_unknown_argument_is_refused() -> None:
    assert launcher("--chekc").returncode == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MODLE", "did you mean MODEL?"),
        ("GRPCPORT", "did you mean GRPC_PORT?"),
        ("max_items", "did you mean MAX_ITEMS?"),
        ("HISCORE_PORT", "did you mean API_PORT?"),
        ("HISCORE_MODEL", "did you mean MODEL?"),
        ("HISCORE_CACH", "did you mean HISCORE_CACHE?"),
        ("WHATEVER_ELSE_THIS_IS", "docs/settings.md lists all settings"),
    ],
)
def test_a_misspelt_setting_is_refused_with_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(LaunchError) as refused:
        check_variables([name])
    assert str(refused.value) == f"{name} is not a setting: {hint}"


def test_what_is_read_is_accepted() -> None:
    check_variables(
        ["MODEL", "MAX_ITEMS", "VENV", "LOCK", "PYTHON", "HF_TOKEN", "CUDA_VISIBLE_DEVICES", "CHECK"]
    )
    # Our own names begin alike, and are all known: the pages have them, with one of the client alone.
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"HISCORE_[A-Z_]+[A-Z]", pages)) - {"HISCORE_URL"}
    assert {"HISCORE_CACHE", "HISCORE_TLS_CERT"} < named
    check_variables(named)


@pytest.mark.slow
def test_make_tells_the_launcher_what_it_was_given() -> None:
    done = subprocess.run(
        [*MAKE, "MODLE=x"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 2
    assert "error: MODLE is not a setting: did you mean MODEL?" in done.stderr
