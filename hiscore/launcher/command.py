"""The command line of tritonserver, closed by default: loopback, and only what a scoring service needs."""

import secrets
from pathlib import Path

from hiscore.launcher.ports import Ports

# They show a caller the server's insides or give control over it. A key that nobody is told locks them.
RESTRICTED = "shared-memory,model-repository,trace,logging"


def tritonserver_flags(
    repository: Path,
    backends: Path,
    server_id: str,
    address: str,
    ports: Ports,
    gpu: bool,
    shm_bytes: int,
    drain_s: int,
) -> list[str]:
    """Flags for Triton 2.51 and newer. shm_bytes: shared memory per model instance, to begin with."""
    # Without a GPU these two can only complain.
    no_gpu = ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    key = secrets.token_hex(16)
    return [
        *([] if gpu else no_gpu),
        f"--id={server_id}",
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=none",
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--exit-on-error=true",
        f"--exit-timeout-secs={drain_s}",
        f"--http-address={address}",
        f"--http-port={ports.http}",
        f"--http-restricted-api={RESTRICTED}:{key}={key}",
        f"--grpc-address={address}",
        f"--grpc-port={ports.grpc}",
        f"--grpc-restricted-protocol={RESTRICTED}:{key}={key}",
        f"--metrics-address={address}",
        f"--metrics-port={ports.metrics}",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        f"--backend-config=python,shm-region-prefix-name={server_id}",
        f"--backend-config=python,shm-default-byte-size={shm_bytes}",
        f"--backend-config=python,shm-growth-byte-size={shm_bytes}",
    ]
