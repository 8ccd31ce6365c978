"""A directory's files as they were when it was written: SHA256SUMS, in the format of ``sha256sum``.

It finds what a disk, a copy or a person has changed since. It is no signature: whoever can write the files can
write it as well.
"""

import hashlib
import re
from pathlib import Path

from hiscore.checkpoint.errors import CheckpointError

SUMS = "SHA256SUMS"
# As sha256sum writes a line; an asterisk stands for a file read as binary.
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def write_digests(directory: Path) -> None:
    """Write the digest of every file that the directory holds."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    lines = [f"{sha256(directory / name)}  {name}\n" for name in names if name != SUMS]
    (directory / SUMS).write_text("".join(lines), "utf-8")


def check_digests(directory: Path) -> None:
    """Compare the files with SHA256SUMS, if there is one; about a second for each GB.

    Raises:
        CheckpointError: names the first file that is another or missing.
    """
    if not (directory / SUMS).is_file():
        return
    for line in (directory / SUMS).read_text("utf-8").splitlines():
        found = LINE.fullmatch(line)
        if not found:
            raise CheckpointError(f"'{directory / SUMS}' has the line {line[:80]!r}: it is not sha256sum's")
        digest, path = found.group(1), directory / found.group(2)
        if not path.is_file():
            raise CheckpointError(f"'{path}' is missing, which {SUMS} beside it names: fetch the model again")
        if (now := sha256(path)) != digest:
            raise CheckpointError(
                f"'{path}' has the SHA-256 {now}, not {digest} as {SUMS} beside it says: it was changed or "
                "cut short and is not loaded. Remove the directory and fetch the model again"
            )


def sha256(path: Path) -> str:
    """A file's digest in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
