"""Settings of the servers that load tests start."""

import os
from typing import Any

from hiscore.settings import Device, ServeSettings


def server_settings(**settings: Any) -> ServeSettings:
    """Settings of a server on free ports; the rest comes from the environment, as for `make serve`."""
    return ServeSettings(**settings, http_port=0, grpc_port=0, metrics_port=0)


def limit_threads(device: Device) -> None:
    """One thread per product for servers on a CPU.

    A rehearsal shares few cores with its load generators, and threads of one product would wait for each other.
    """
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
