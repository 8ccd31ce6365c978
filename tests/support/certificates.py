"""Certificates for tests, made by openssl: a CA, and what it has signed for 127.0.0.1."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


def make_ca(directory: Path, name: str) -> Certificate:
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl("req", "-x509", "-subj", f"/CN={name}", "-keyout", made.key, "-out", made.cert, *NEW)
    return made


def sign(ca: Certificate, directory: Path, name: str) -> Certificate:
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl("req", "-subj", f"/CN={name}", "-keyout", made.key, "-out", request, *NEW)
    by = ["-CA", ca.cert, "-CAkey", ca.key, "-CAcreateserial"]
    _openssl("x509", "-req", "-in", request, "-out", made.cert, "-days", "1", "-extfile", extensions, *by)
    return made


NEW = ("-newkey", "rsa:2048", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
