"""Several checkpoints behind one tritonserver: a model for each, since starting a server for each takes longer."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hiscore.launcher import Server
from hiscore.launcher.repository import CONFIG, model_values, write_repository
from hiscore.models.support import servable
from tests.server.conftest import settings_of


@contextmanager
def fleet(model: str, checkpoints: Mapping[str, Path], log_path: Path, **settings: Any) -> Iterator[Server]:
    """A server with a model ``MODEL-NAME`` for each checkpoint's name; model: `scorer` or `decode`."""
    chosen = settings_of(next(iter(checkpoints.values())), models=model, **settings)

    def write_all(source: Path, target: Path, values: Any) -> None:
        for name, checkpoint in checkpoints.items():
            selectors = servable(checkpoint).selectors
            of_one = model_values(chosen, checkpoint, "cpu", (model,), selectors)
            write_repository(source, target / "one", of_one)
            shutil.move(target / "one" / model, target / f"{model}-{name}")
            config = target / f"{model}-{name}" / CONFIG
            config.write_text(config.read_text().replace(f'name: "{model}"', f'name: "{model}-{name}"', 1))
        (target / "one").rmdir()

    with (
        mock.patch("hiscore.launcher.server.write_repository", write_all),
        Server(chosen, log_path) as server,
    ):
        yield server
