"""TLS between the HTTP API and the models beside it: with the certificate that both show their callers."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hiscore.settings import ServeSettings


class LinkRefused(ValueError):
    """The API could not call the models; the message says why."""


def link_variables(settings: ServeSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Make the variables of `hiscore_client.tls` with which the API calls the models of the same server.

    It trusts the models' certificate itself, by a name that stands in it, and shows its own where callers must.
    Variables that are set in `environment` stay.

    Raises:
        LinkRefused: The certificate is not one with which the models would let the API in.
    """
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None or key is None or settings.api_backend:
        return {}
    given = {name: environment.get(f"HISCORE_TLS_{name}") for name in ("CA", "CERT", "KEY", "NAME")}
    own = Path(given["CERT"] or cert), Path(given["KEY"] or key)
    shown = handshake(cert, key, client_ca, own)
    chosen = {"CA": str(cert), "NAME": name_in(shown)}
    if client_ca is not None:
        chosen |= {"CERT": str(own[0]), "KEY": str(own[1])}
    return {f"HISCORE_TLS_{name}": given[name] or value for name, value in chosen.items()}


def handshake(cert: Path, key: Path, client_ca: Path | None, own: tuple[Path, Path]) -> Mapping[str, object]:
    """Read a certificate as a caller that trusts it sees it, by a handshake in memory.

    `client_ca` is the CA of the certificates that callers must have; `own` are the caller's certificate and key.

    Raises:
        LinkRefused: One side refuses the other.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    caller.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(cert, key)
        caller.load_verify_locations(cert)
        if client_ca is not None:
            server.verify_mode = ssl.CERT_REQUIRED
            server.load_verify_locations(client_ca)
            caller.load_cert_chain(*own)
        to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = (
            server.wrap_bio(to_server, to_caller, server_side=True),
            caller.wrap_bio(to_caller, to_server),
        )
        for _ in range(4):
            for side in sides:
                _go_on(side)
        shown = sides[1].getpeercert()
    except (ssl.SSLError, OSError) as error:
        raise LinkRefused(str(error)) from None
    assert shown is not None
    return shown


def name_in(certificate: Mapping[str, object]) -> str:
    """Find a name that a certificate, as `ssl` describes it, is good for; raise `LinkRefused` if it has none."""
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, tuple)
    for kind, name in names:
        if kind in ("DNS", "IP Address"):
            return str(name).replace("*", "api")
    raise LinkRefused("the certificate names no host (subjectAltName)")


def _go_on(side: ssl.SSLObject) -> None:
    with suppress(ssl.SSLWantReadError):
        side.do_handshake()
