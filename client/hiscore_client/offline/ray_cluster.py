"""The Ray cluster to run on: an existing one, or a private one on this machine that leaves nothing behind."""

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
# The minimum that Ray accepts; a shard is only a few numbers.
OBJECT_STORE_BYTES = 80 * 2**20

PRIVATE_CLUSTER_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray kills our small workers when anything on the machine fills its memory.
    "RAY_memory_monitor_refresh_ms": "0",
    # Nobody else may run code here. Without a token given, Ray would write one into the user's home directory.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@contextmanager
def connected(address: str | None, workers: int) -> Iterator[None]:
    """Connect to a Ray cluster for the duration of the block.

    Args:
        address: Of an existing cluster; None: start a private one.
        workers: CPUs of a private cluster.

    Raises:
        HiscoreError: Ray cannot be started or reached.
    """
    if address:
        _connect(address=address)
        try:
            yield
        finally:
            _disconnect()
        return
    # Ray reads these on import, here and in the processes that it starts.
    os.environ.update(
        {name: os.environ.get(name, value) for name, value in PRIVATE_CLUSTER_ENVIRONMENT.items()}
    )
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
    # Ray raises a bare Exception if one of its processes does not start.
    except Exception as error:
        raise HiscoreError(f"cannot start or reach Ray: {error}") from None


def _disconnect() -> None:
    import ray

    # Errors of the shutdown itself are of no use.
    with suppress(Exception):
        ray.shutdown()


def _remove(directory: Path) -> None:
    # Ray's last processes may still write into it while it is being removed.
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(REMOVE_PAUSE)
