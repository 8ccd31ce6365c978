"""TLS from files and variables: what makes credentials, and what is refused by name."""

from pathlib import Path

import pytest

from hiscore_client import InvalidRequest
from hiscore_client.config import make_config
from hiscore_client.tls import from_environment
from tests.support.certificates import Certificate, make_ca


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_ca(tmp_path_factory.mktemp("pki"), "ca")


def test_without_any_of_it_there_is_no_tls() -> None:
    assert from_environment({}) is None
    assert from_environment({"HISCORE_TLS": "0", "HISCORE_TLS_CA": ""}) is None


@pytest.mark.slow
def test_each_of_them_means_tls(own: Certificate) -> None:
    ca, cert, key = str(own.cert), str(own.cert), str(own.key)
    for environment in (
        {"HISCORE_TLS": "1"},
        {"HISCORE_TLS_CA": ca},
        {"HISCORE_TLS_CERT": cert, "HISCORE_TLS_KEY": key},
    ):
        assert from_environment(environment) is not None


def test_files_that_cannot_be_used_are_named(own: Certificate, tmp_path: Path) -> None:
    cert, key = str(own.cert), str(own.key)
    for given, message in (
        ({"CA": str(tmp_path / "none")}, r"cannot read '.*none': No such file"),
        ({"CA": key}, "holds no certificate in PEM"),
        ({"CERT": cert, "KEY": cert}, "holds no private key in PEM"),
        ({"CERT": cert}, "belong together"),
        ({"KEY": key}, "belong together"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            from_environment({f"HISCORE_TLS_{name}": path for name, path in given.items()})


def test_the_name_in_the_certificate_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "grpc.ssl_target_name_override"
    assert name not in dict(make_config("a:1", None, None, 1, None).channel_args())
    monkeypatch.setenv("HISCORE_TLS_NAME", "scores.example.org")
    assert dict(make_config("a:1", None, None, 1, None).channel_args())[name] == "scores.example.org"
