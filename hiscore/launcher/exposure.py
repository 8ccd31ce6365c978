"""What must hold before a server listens where others than this machine reach it."""

import ipaddress
import re
from pathlib import Path

from hiscore.launcher.distribution import Distribution
from hiscore.launcher.errors import LaunchError
from hiscore.settings import ServeSettings

# 26.07, the first release behind NVIDIA's security bulletins up to 5875. Older ones have known vulnerabilities;
# some let anyone who reaches a port run code.
FIRST_SAFE = (2, 71)
# The release in the nvidia-pytriton wheel, which does not say so itself.
WHEEL = (2, 51)


def check_exposure(settings: ServeSettings, distribution: Distribution) -> None:
    """Refuse to open an old Triton to other machines, and half a TLS configuration.

    Raises:
        LaunchError: the message says what to set.
    """
    _check_tls(settings)
    if is_loopback(settings.bind_address) or settings.allow_known_cves:
        return
    version = triton_version(distribution)
    if version is None or version < FIRST_SAFE:
        found = "an unknown version" if version is None else "{}.{}".format(*version)
        safe = "{}.{}".format(*FIRST_SAFE)
        raise LaunchError(
            f"BIND_ADDRESS {settings.bind_address} opens tritonserver ({found}) to other machines, and versions "
            f"before {safe} (26.07) have known vulnerabilities: name a newer one in TRITONSERVER, keep to "
            "127.0.0.1 behind a gateway, or set ALLOW_KNOWN_CVES=1 where every caller is trusted"
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address; a name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def triton_version(distribution: Distribution) -> tuple[int, int] | None:
    """Major and minor version of a tritonserver, or None if nothing tells it.

    Triton's releases have it in a file beside ``bin/``; the program itself does not tell.
    """
    if distribution.is_wheel:
        return WHEEL
    file = distribution.tritonserver.resolve().parents[1] / "TRITON_VERSION"
    found = re.match(r"(\d+)\.(\d+)\.", file.read_text()) if file.is_file() else None
    return (int(found.group(1)), int(found.group(2))) if found else None


def _check_tls(settings: ServeSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise LaunchError("TLS_CERT and TLS_KEY belong together: set both, or none")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise LaunchError("TLS_CLIENT_CA needs TLS_CERT and TLS_KEY")
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        path: Path | None = getattr(settings, name)
        if path is not None and not path.is_file():
            raise LaunchError(f"{name.upper()} names {path}, which is not a file")
