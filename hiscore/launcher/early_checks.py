"""Checks of the settings and the machine alone, before any file of a checkpoint is read."""

import ssl
from pathlib import Path

from hiscore.launcher.device_choice import choose_device, no_gpu, visible_gpus
from hiscore.launcher.errors import BadSetting
from hiscore.launcher.ports import check_address, check_free
from hiscore.prompts.families import FAMILIES
from hiscore.server.host import available_host_bytes
from hiscore.settings import ServeSettings

PORTS = ("http_port", "grpc_port", "metrics_port", "health_port", "api_port")


def check_early(settings: ServeSettings) -> None:
    """Run every check that takes no time; raises `LaunchError`."""
    check_tls(settings)
    check_files(settings)
    check_device(settings)
    check_memory(settings)
    check_ports(settings)


def check_files(settings: ServeSettings) -> None:
    """Refuse files of the HTTP API that are not there: it starts when the models have been loaded."""
    for name in ("api_keys_file", "calibration", "prompt_template"):
        given: Path | str | None = getattr(settings, name)
        if given and given not in FAMILIES and not Path(given).is_file():
            other = f" nor one of {', '.join(FAMILIES)}" if name == "prompt_template" else ""
            raise BadSetting(f"{name.upper()} names {given}, which is not a file{other}")


def check_device(settings: ServeSettings) -> None:
    """Refuse a GPU that is not there, and numbers that the device cannot compute with."""
    if settings.device == "cuda" and (reason := no_gpu()):
        raise BadSetting(f"DEVICE is cuda, but {reason}: set DEVICE=cpu, or leave it unset")
    device, reason = choose_device(settings.device)
    if settings.dtype == "fp8" and device == "cpu":
        raise BadSetting(
            f"DTYPE is fp8, which needs a GPU, and the device is the CPU ({reason}): leave DTYPE unset"
        )
    ranks = settings.tensor_parallel
    if device == "cuda" and visible_gpus() % ranks:
        raise BadSetting(
            f"TENSOR_PARALLEL is {ranks}, and {visible_gpus()} GPUs are visible, which is no multiple of it: "
            "name those to use in CUDA_VISIBLE_DEVICES"
        )


def check_memory(settings: ServeSettings) -> None:
    """Refuse pools on the host that are larger than what it has free."""
    on_host = ["host_kv_bytes"]
    if choose_device(settings.device)[0] == "cpu":
        on_host += ["device_kv_bytes", "query_cache_bytes"]
    free = available_host_bytes()
    for name in on_host:
        if (given := getattr(settings, name) or 0) > free:
            raise BadSetting(f"{name.upper()} is {given}, and this machine has {free} bytes free: lower it")


def check_ports(settings: ServeSettings) -> None:
    """Refuse an address of another machine, and ports that are named twice or in use."""
    check_address("BIND_ADDRESS", settings.bind_address)
    given: dict[int, str] = {}
    for name in PORTS:
        port: int | None = getattr(settings, name)
        if not port:
            continue
        if port in given:
            raise BadSetting(f"{given[port]} and {name.upper()} are both {port}: they must differ")
        given[port] = name.upper()
    for port, name in given.items():
        # That of the API is checked where it is started: not every server has one.
        if name != "API_PORT":
            check_free(name, settings.bind_address, port)


def check_tls(settings: ServeSettings) -> None:
    """Refuse half a TLS configuration, and files that are not what they should be."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise BadSetting("TLS_CERT and TLS_KEY belong together: set both, or none")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise BadSetting("TLS_CLIENT_CA needs TLS_CERT and TLS_KEY")
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        path: Path | None = getattr(settings, name)
        if path is not None and not path.is_file():
            raise BadSetting(f"{name.upper()} names {path}, which is not a file")
    if settings.tls_cert is not None and settings.tls_key is not None:
        check_pem_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def check_pem_files(cert: Path, key: Path, client_ca: Path | None) -> None:
    """Refuse files that TLS cannot use: Triton would start all models before it says so, and not say why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password must not be asked for on the terminal; Triton takes none.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise BadSetting(
            f"TLS_CERT {cert} and TLS_KEY {key} cannot be used: {pem_fault(cert, key, error)}"
        ) from None
    except OSError as error:
        raise BadSetting(f"TLS_CERT {cert} or TLS_KEY {key} cannot be read: {error.strerror}") from None
    if client_ca is None:
        return
    try:
        context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError) as error:
        raise BadSetting(f"TLS_CLIENT_CA {client_ca} holds no certificate in PEM: {error}") from None


def pem_fault(cert: Path, key: Path, error: Exception) -> str:
    """Say which of two files is at fault, and why."""
    if b"-----BEGIN CERTIFICATE-----" not in cert.read_bytes():
        return "the first holds no certificate in PEM"
    text = key.read_bytes()
    if b"PRIVATE KEY-----" not in text:
        return "the second holds no key in PEM"
    if b"ENCRYPTED" in text:
        return "the key has a password; Triton takes none"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    return str(error)
