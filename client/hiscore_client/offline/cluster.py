"""A Ray cluster to run on: one that is there, or a private one on this machine that leaves nothing behind."""

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hiscore_client.errors import HiscoreError

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
    before = {name: os.environ.get(name) for name in PRIVATE}
    os.environ.update({name: os.environ.get(name, value) for name, value in PRIVATE.items()})
    try:
        with tempfile.TemporaryDirectory(prefix="hiscore-ray-", ignore_cleanup_errors=True) as directory:
            _connect(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(Path(directory).resolve()),
            )
            try:
                yield
            finally:
                _disconnect()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _connect(**options: Any) -> None:
    import ray

    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise HiscoreError(f"cannot start or reach Ray: {error}") from None


def _disconnect() -> None:
    import ray

    # What it has to say about its own end helps nobody.
    with suppress(Exception):
        ray.shutdown()
