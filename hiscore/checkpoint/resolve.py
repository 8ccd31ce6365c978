"""Find the checkpoint that ``MODEL`` names: the default model, a local directory, or a hub repository."""

import re
from pathlib import Path

from hiscore.checkpoint.directory import check_directory
from hiscore.checkpoint.errors import BadCheckpoint
from hiscore.settings import DEFAULT_MODEL

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def published_name(directory: Path) -> str:
    """The name under which a checkpoint is known: ``org/name`` in the hub's cache, else that of its directory."""
    match directory.parts:
        case [*_, repository, "snapshots", _] if repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/")
    # Its directory in the cache ends in the revision of its conversion.
    of_cache = re.fullmatch(rf"{re.escape(DEFAULT_MODEL)}-r\d+", directory.name)
    return DEFAULT_MODEL if of_cache else directory.name


def resolve(model: str = DEFAULT_MODEL, *, progress: bool = True) -> Path:
    """Find a checkpoint, download it if necessary, and check that it can be served.

    `model` is `DEFAULT_MODEL`, a directory, or ``org/name``, tried in this order.
    """
    if model == DEFAULT_MODEL:
        from hiscore.checkpoint import default_model

        return check_directory(default_model.path(progress=progress))
    directory = Path(model).expanduser()
    if model and directory.exists():
        return check_directory(directory.resolve())
    if HUB_ID.fullmatch(model):
        from hiscore.checkpoint import hub

        return check_directory(hub.download(model, progress=progress))
    raise BadCheckpoint(
        f"no model '{model}': it is neither '{DEFAULT_MODEL}' nor an existing directory nor the name of a "
        "hub repository (org/name)"
    )
