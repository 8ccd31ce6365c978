"""API keys: read from a file, compared without telling how much of a guess was right."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from hiscore.api.http.errors import ApiError


class Keys:
    """The keys that callers may send as ``Authorization: Bearer KEY`` (or ``Api-Key: KEY``).

    Args:
        path: A file with a key a line; blank lines and lines that begin with ``#`` are skipped. None: no keys.

    Raises:
        ValueError: The file has no key.
    """

    def __init__(self, path: Path | None) -> None:
        lines = path.read_text("utf-8-sig").splitlines() if path else []
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if path and not keys:
            raise ValueError(f"{path} has no API key")
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Mapping[str, str]) -> None:
        """Let the caller pass, or raise `ApiError` if keys are needed and the request has none of them."""
        if not self._digests:
            return
        scheme, _, value = headers.get("authorization", "").partition(" ")
        key = value.strip() if scheme.lower() == "bearer" else headers.get("api-key", "")
        given = _digest(key)
        # All are compared, so that the time does not tell which key it was.
        if not sum(hmac.compare_digest(given, digest) for digest in self._digests):
            raise ApiError(401, "no valid API key: send one as 'Authorization: Bearer KEY'")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
