"""Settings of libraries reach the processes of server and API, after those of the launcher's environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.launcher.api import Api
from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.libraries import LIBRARIES
from hiscore.settings import ServeSettings


def of_server(directory: Path) -> dict[str, str]:
    return find_distribution().environment(directory)


def of_api(directory: Path) -> dict[str, str]:
    api = Api(ServeSettings(), directory, "localhost:1", ["score"])
    api.port = 1
    return api._environment()


@pytest.mark.parametrize("environment", [of_server, of_api])
def test_they_are_set_unless_the_environment_says_otherwise(
    environment: Callable[[Path], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LIBRARIES:
        monkeypatch.delenv(name, raising=False)
    assert environment(tmp_path).items() >= LIBRARIES.items()
    for name in LIBRARIES:
        monkeypatch.setenv(name, "4096")
        assert environment(tmp_path)[name] == "4096"
