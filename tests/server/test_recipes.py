"""The recipes of docs/recipes.md run as they stand, but for the addresses, in the order of the page."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from tests.server.conftest import StartServer
from tests.support import tiny_models, tiny_tokenizers
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/recipes.md").read_text()
RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REWARD, NEEDS_GPUS = "A reward model", {"Two GPUs"}
LONG = {"Rerank 1,000 documents", "A data set, offline"}


@pytest.fixture(scope="module")
def reward_model(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A small random classifier of one label."""
    directory = tiny_models.make("qwen3", tmp_path_factory.mktemp("reward"), labels=1)
    tokenizer = tiny_tokenizers.train(tiny_tokenizers.smollm2(), tiny_models.VOCABULARY)
    return start_server(tiny_tokenizers.save(tokenizer, directory))


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough a path for the sockets that Ray puts below it."""
    with tempfile.TemporaryDirectory(prefix="recipe-") as made:
        yield Path(made)


def run(language: str, text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader with an active `.venv` would."""
    command = (
        [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(directory), "NO_PROXY": "*", "no_proxy": "*"}
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def check(name: str, server: Server, api_url: str, directory: Path) -> None:
    """Run the blocks of a recipe: each has to succeed and show something."""
    blocks = BLOCK.findall(RECIPES[name])
    assert blocks, f"{name} has nothing to run"
    for language, text in blocks:
        for written, real in (
            ("localhost:8080", api_url.removeprefix("http://")),
            ("localhost:8001", server.grpc_url),
            ("localhost:8002", server.metrics_address),
        ):
            text = text.replace(written, real)
        done = run(language, text, directory)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in LONG else ())
        for name in RECIPES
        if name not in {REWARD, *NEEDS_GPUS}
    ],
)
def test_a_recipe_runs(name: str, server: Server, api: Api, directory: Path) -> None:
    check(name, server, api.url, directory)


@pytest.mark.exhaustive
def test_the_reward_models_recipe_runs(reward_model: Server, directory: Path) -> None:
    check(REWARD, reward_model, "", directory)


def test_control_a_recipe_that_fails_is_noticed(directory: Path) -> None:
    assert run("python", "import requests\nrequests.get('http://127.0.0.1:9/')", directory).returncode != 0
    assert run("bash", "false | head", directory).returncode != 0
