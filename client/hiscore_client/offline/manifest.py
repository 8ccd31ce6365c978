"""The manifest of an output directory: which job it belongs to, so that no other job resumes in it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hiscore_client.errors import InvalidRequest
from hiscore_client.offline.job import Task
from hiscore_client.offline.shards import FileScan

VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The task, and the fingerprint of the input."""

    task: Task
    files: tuple[FileScan, ...]

    def as_json(self) -> str:
        """Serialise; the shard boundaries are left out, as they follow from the rest."""
        files = [
            {name: value for name, value in asdict(file).items() if name != "boundaries"}
            for file in self.files
        ]
        return json.dumps({"version": VERSION, "task": asdict(self.task), "files": files}, indent=1)


def check_resume(written: str, current: Manifest) -> None:
    """Check that an output directory belongs to this job.

    Args:
        written: The manifest in the directory.
        current: That of the run that wants to resume.

    Raises:
        InvalidRequest: The task or the input differs, or the manifest cannot be read.
    """
    new = json.loads(current.as_json())
    try:
        old = json.loads(written)
        if old["version"] != VERSION:
            raise InvalidRequest(f"the output's manifest has version {old['version']}, not {VERSION}")
        # An option that an older version did not have was at its default.
        before = asdict(Task()) | old["task"]
        for name, value in new["task"].items():
            if before[name] != value:
                had = json.dumps(before[name])
                raise InvalidRequest(
                    f"the output was started with '{name}' {had}, not {json.dumps(value)}: choose another one"
                )
        _compare_files(old["files"], new["files"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest("the output's manifest cannot be read: choose another output") from None


def _compare_files(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> None:
    if [file["name"] for file in old] != [file["name"] for file in new]:
        raise InvalidRequest(
            f"the output was started with other input files ({len(old)}, now {len(new)}): choose another one"
        )
    for before, after in zip(old, new, strict=True):
        if before != after:
            raise InvalidRequest(
                f"the input file '{after['name']}' has changed since the output was started: choose another one"
            )
