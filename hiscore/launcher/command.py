"""The command line of tritonserver, closed by default: loopback, and only what a scoring service needs."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from hiscore.launcher.ports import Ports

# They show a caller the server's insides or give control over it. A key that nobody is told locks them.
RESTRICTED = "shared-memory,model-repository,trace,logging"
# Triton takes the key from the command line alone, where every user of the machine can read it. So it ends with
# what neither HTTP nor gRPC can carry in a header: whoever reads it cannot send it.
UNSENDABLE = "\n"


def tritonserver_flags(
    repository: Path,
    backends: Path,
    server_id: str,
    address: str,
    http_address: str,
    tls: Sequence[str],
    tracing: Sequence[str],
    ports: Ports,
    gpu: bool,
    shm_bytes: int,
    drain_s: int,
) -> list[str]:
    """Flags for Triton 2.51 and newer.

    tls, tracing: from `tls_flags` and `trace_flags`; shm_bytes: shared memory per model instance, to begin with.
    """
    # Without a GPU these two can only complain.
    no_gpu = ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    key = f"hiscore={secrets.token_hex(16)}{UNSENDABLE}"
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
        f"--http-address={http_address}",
        f"--http-port={ports.http}",
        f"--http-restricted-api={RESTRICTED}:{key}",
        f"--grpc-address={address}",
        f"--grpc-port={ports.grpc}",
        f"--grpc-restricted-protocol={RESTRICTED}:{key}",
        *tls,
        *tracing,
        f"--metrics-address={address}",
        f"--metrics-port={ports.metrics}",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        f"--backend-config=python,shm-region-prefix-name={server_id}",
        f"--backend-config=python,shm-default-byte-size={shm_bytes}",
        f"--backend-config=python,shm-growth-byte-size={shm_bytes}",
    ]


def tls_flags(cert: Path | None, key: Path | None, client_ca: Path | None) -> list[str]:
    """Flags for TLS on the gRPC interface; with a client CA only callers with a certificate of it are let in."""
    if cert is None or key is None:
        return []
    mutual = ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={client_ca}"] if client_ca else []
    # Triton takes certificates into account only where the first flag is set.
    return ["--grpc-use-ssl=true", *mutual, f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]


def trace_flags(url: str | None, rate: int) -> list[str]:
    """Flags for OpenTelemetry traces: of one call in `rate`, and of each that brings a ``traceparent``."""
    if url is None:
        return []
    options = [
        "mode=opentelemetry",
        f"opentelemetry,url={url}",
        "opentelemetry,resource=service.name=hiscore",
        # The other level, TENSORS, is what callers send.
        "level=TIMESTAMPS",
        f"rate={rate}",
        "count=-1",
    ]
    return [f"--trace-config={option}" for option in options]
