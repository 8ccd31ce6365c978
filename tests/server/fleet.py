"""Several checkpoints behind one tritonserver: a model for each, since starting a server for each takes longer."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hiscore.launcher import Server
from hiscore.launcher.repository import CONFIG, changed_config
from tests.server.conftest import settings_of


@contextmanager
def fleet(model: str, checkpoints: Mapping[str, Path], log_path: Path, **settings: Any) -> Iterator[Server]:
    """A server with a model ``MODEL-NAME`` for each checkpoint's name; model: `scorer` or `decode`."""
    chosen = settings_of(next(iter(checkpoints.values())), models=model, **settings)

    def write_all(source: Path, target: Path, changes: Any) -> None:
        for name, checkpoint in checkpoints.items():
            copy = target / f"{model}-{name}"
            shutil.copytree(source / model, copy, ignore=shutil.ignore_patterns("__pycache__"))
            text = changed_config((copy / CONFIG).read_text(), changes[model])
            parameter = f'parameters {{ key: "MODEL" value: {{ string_value: "{checkpoint}" }} }}\n'
            renamed = text.replace(f'name: "{model}"', f'name: "{copy.name}"', 1)
            (copy / CONFIG).write_text(renamed + parameter)

    with (
        mock.patch("hiscore.launcher.server.write_repository", write_all),
        Server(chosen, log_path) as server,
    ):
        yield server
