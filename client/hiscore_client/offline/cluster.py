"""A Ray cluster to run on: one that is there, or a private one on this machine that leaves nothing behind."""

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hiscore_client.errors import HiscoreError

REMOVE_TRIES, REMOVE_PAUSE = 50, 0.1
# The least that Ray takes; shards are a few numbers each.
OBJECT_STORE_BYTES = 80 * 2**20

PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray kills workers when the machine's memory is nearly full, whoever uses it; ours need little.
    "RAY_memory_monitor_refresh_ms": "0",
    # Nobody else may run code here. Ray would otherwise write a token into the user's home.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@contextmanager
def connected(address: str | None, workers: int) -> Iterator[None]:
    """Be connected to the cluster at an address; None: to a private one with a CPU for each worker."""
    if address:
        _connect(address=address)
        try:
            yield
        finally:
            _disconnect()
        return
    # Ray reads these when it is imported, in this process and in those that it starts.
    os.environ.update({name: os.environ.get(name, value) for name, value in PRIVATE.items()})
    directory = Path(tempfile.mkdtemp(prefix="hiscore-ray-")).resolve()
    try:
        _connect(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(directory),
        )
        yield
    finally:
        _disconnect()
        _remove(directory)


def _connect(**options: Any) -> None:
    import ray

    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    # Ray raises that itself where a process of its does not come up.
    except Exception as error:
        raise HiscoreError(f"cannot start or reach Ray: {error}") from None


def _disconnect() -> None:
    import ray

    # What it has to say about its own end helps nobody.
    with suppress(Exception):
        ray.shutdown()


def _remove(directory: Path) -> None:
    # The last of Ray's processes may write into it while it goes.
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(REMOVE_PAUSE)
