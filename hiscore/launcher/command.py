"""The command line of tritonserver: only the interfaces that a scoring service needs are open."""

import secrets
from pathlib import Path

from hiscore.launcher.addresses import for_evhtp, in_url
from hiscore.launcher.ports import Ports
from hiscore.launcher.preflight import SHM_BYTES
from hiscore.settings import ServeSettings

# These show callers the server's internals or give control over it. They are locked with a key that nobody knows.
RESTRICTED = "shared-memory,model-repository,trace,logging"
# Triton takes the key only from the command line, where every user of the machine can read it. It therefore ends
# with a character that no HTTP or gRPC header can carry: whoever reads the key cannot send it.
UNSENDABLE = "\n"


def tritonserver_flags(
    settings: ServeSettings, directory: Path, ports: Ports, http_address: str, gpu: bool
) -> list[str]:
    """Make the flags for Triton 2.51 and newer; the name of `directory` prefixes the server's shared memory."""
    server_id, address = directory.name, settings.bind_address
    # Without a GPU both features only log errors.
    no_gpu = ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    key = f"hiscore={secrets.token_hex(16)}{UNSENDABLE}"
    return [
        *([] if gpu else no_gpu),
        f"--id={server_id}",
        f"--model-repository={directory / 'models'}",
        f"--backend-directory={directory / 'backends'}",
        "--model-control-mode=none",
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--exit-on-error=true",
        f"--exit-timeout-secs={settings.drain_timeout_s}",
        f"--http-address={for_evhtp(http_address)}",
        f"--http-port={ports.http}",
        f"--http-restricted-api={RESTRICTED}:{key}",
        f"--grpc-address={in_url(address)}",
        f"--grpc-port={ports.grpc}",
        f"--grpc-restricted-protocol={RESTRICTED}:{key}",
        *tls_flags(settings.tls_cert, settings.tls_key, settings.tls_client_ca),
        *trace_flags(settings.trace_url, settings.trace_rate),
        f"--metrics-address={for_evhtp(address)}",
        f"--metrics-port={ports.metrics}",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        f"--backend-config=python,shm-region-prefix-name={server_id}",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_BYTES}",
    ]


def tls_flags(cert: Path | None, key: Path | None, client_ca: Path | None) -> list[str]:
    """Make the flags for TLS over gRPC, none without `cert`; with `client_ca` callers need a certificate of it."""
    if cert is None or key is None:
        return []
    mutual = ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={client_ca}"] if client_ca else []
    # Triton ignores certificates without the first flag.
    return ["--grpc-use-ssl=true", *mutual, f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]


def trace_flags(url: str | None, rate: int) -> list[str]:
    """Make the flags for OpenTelemetry traces of 1 in `rate` requests, and of those with a ``traceparent``."""
    if url is None:
        return []
    options = [
        "mode=opentelemetry",
        f"opentelemetry,url={url}",
        "opentelemetry,resource=service.name=hiscore",
        # The other level, TENSORS, would record what callers send.
        "level=TIMESTAMPS",
        f"rate={rate}",
        "count=-1",
    ]
    return [f"--trace-config={option}" for option in options]
