"""The packages as somebody installs them: wheels in an environment that has nothing of development."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.launcher.repository import SHIPPED
from tools.dist import build_wheels

ROOT = Path(__file__).resolve().parents[2]
OF_DEVELOPMENT = ("mypy", "pytest", "ray", "hypothesis", "kubernetes_validate")

pytestmark = pytest.mark.exhaustive
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of the environment, far from the checkout and without this environment's variables."""
    directory = tmp_path_factory.mktemp("installed")
    wheels, environment = directory / "wheels", directory / "environment"
    wheels.mkdir()
    assert len(build_wheels(wheels)) == 2
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / "bin"
    given = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    given = {name: value for name, value in given.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        program = programs / command[0]
        return subprocess.run(
            [program, *command[1:]], cwd=directory, env=given, capture_output=True, text=True, check=False
        )

    options = ["--quiet", "--find-links", wheels, "--constraint", ROOT / "requirements.lock"]
    done = run("pip", "install", *options, "hiscore-serving[triton]")
    assert done.returncode == 0, done.stderr
    return run


def test_nothing_of_development_is_there(run: Run) -> None:
    listed = run("pip", "list", "--format=freeze").stdout
    assert "hiscore-serving==" in listed
    for name in OF_DEVELOPMENT:
        assert run("python", "-c", f"import {name}").returncode == 1, name
    assert run("pip", "check").returncode == 0


def test_the_demo_runs(run: Run) -> None:
    done = run("hiscore", "demo")
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout


def test_the_server_checks_its_settings(run: Run) -> None:
    done = run("hiscore", "serve", "MODELS=scorer", "DEVICE=cpu", "--check")
    assert done.returncode == 0, done.stderr
    assert "all checks passed: scorer on cpu" in done.stdout
    for wrong, says in (("NOPE=1", "NOPE is not a setting"), ("MODELS", "MODELS is not NAME=VALUE")):
        done = run("hiscore", "serve", wrong)
        assert (done.returncode, says in done.stderr) == (2, True)


def test_the_repository_is_that_of_the_checkout(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "models"
    for code in (0, 2):  # a directory that holds something is left alone
        assert run("hiscore", "repository", target).returncode == code
    assert files_of(target) == files_of(SHIPPED)


def files_of(directory: Path) -> dict[Path, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(directory): path.read_bytes() for path in files}
