"""TLS as flags and environment variables describe it: files in PEM.

| variable | meaning |
|---|---|
| ``HISCORE_TLS`` | ``1``: TLS, with the machine's own CAs |
| ``HISCORE_TLS_CA`` | TLS, with the CAs in this file |
| ``HISCORE_TLS_CERT``, ``HISCORE_TLS_KEY`` | the caller's own certificate and its key |
| ``HISCORE_TLS_NAME`` | the name in the server's certificate, where it is reached by another |
"""

import os
from collections.abc import Mapping
from pathlib import Path

import grpc

from hiscore_client.errors import InvalidRequest


def from_environment(environment: Mapping[str, str] = os.environ) -> grpc.ChannelCredentials | None:
    """Make credentials for `ScoreClient` from the variables above; None without TLS.

    Raises:
        InvalidRequest: A file cannot be read or is not PEM, or one of certificate and key is missing.
    """
    ca, cert, key = (environment.get(f"HISCORE_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    if not (ca or cert or key or environment.get("HISCORE_TLS", "") not in ("", "0")):
        return None
    if bool(cert) != bool(key):
        raise InvalidRequest("a TLS certificate and its key belong together: give both, or none")
    return grpc.ssl_channel_credentials(
        _read(ca, "CERTIFICATE"), _read(key, "PRIVATE KEY"), _read(cert, "CERTIFICATE")
    )


def _read(path: str | None, kind: str) -> bytes | None:
    if not path:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read '{path}': {error.strerror}") from None
    if f"{kind}-----".encode() not in text:
        raise InvalidRequest(f"'{path}' holds no {kind.lower()} in PEM")
    return text
