"""The `hiscore` command, in this process (quick) or in another one."""

import io
import json
import os
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

from tests.support.timeouts import TIMEOUT_S

COMMAND = [sys.executable, "-c", "from hiscore_client.cli import main; main()"]


def run(*args: str, url: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the command in this process: importing its packages takes most of a second."""
    from hiscore_client.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        # Click writes through the streams of `sys`, rich too; the input is read through the file descriptor.
        with (
            mock.patch.object(sys, "argv", ["hiscore", *args]),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(given)),
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "stderr", err),
            mock.patch.dict(os.environ, {"HISCORE_URL": url}),
        ):
            try:
                main()
                code = 0
            except SystemExit as exit_:
                code = int(exit_.code or 0)
    return subprocess.CompletedProcess(args, code, _written(out), _written(err))


def run_process(
    *args: str, url: str, stdin: bytes = b"", **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*COMMAND, *args],
        input=stdin,
        capture_output=True,
        env={**os.environ, "HISCORE_URL": url, **environment},
        timeout=TIMEOUT_S,
    )


def lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _written(stream: io.TextIOWrapper) -> bytes:
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue()
