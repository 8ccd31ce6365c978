"""TLS between the HTTP API and the models beside it."""

from pathlib import Path

import pytest

from hiscore.launcher.api_tls import LinkRefused, link_variables, name_in
from hiscore.settings import ServeSettings
from tests.support.certificates import Certificate, make_ca, sign


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    directory = tmp_path_factory.mktemp("pki")
    ca, stranger = make_ca(directory, "ca"), make_ca(directory, "stranger")
    return {
        "ca": ca,
        "server": sign(ca, directory, "server"),
        "caller": sign(stranger, directory, "caller"),
        "stranger": stranger,
    }


def settings(pki: dict[str, Certificate], client_ca: str = "", **more: object) -> ServeSettings:
    ca = {"tls_client_ca": pki[client_ca].cert} if client_ca else {}
    return ServeSettings(tls_cert=pki["server"].cert, tls_key=pki["server"].key, **ca, **more)


@pytest.mark.slow
def test_the_api_trusts_the_very_certificate_by_a_name_in_it(pki: dict[str, Certificate]) -> None:
    assert link_variables(settings(pki), {}) == {
        "HISCORE_TLS_CA": str(pki["server"].cert),
        "HISCORE_TLS_NAME": "127.0.0.1",
    }


def test_it_shows_the_same_certificate_where_callers_must_have_one(pki: dict[str, Certificate]) -> None:
    found = link_variables(settings(pki, "ca"), {})
    assert found["HISCORE_TLS_CERT"] == str(pki["server"].cert)
    assert found["HISCORE_TLS_KEY"] == str(pki["server"].key)


def test_a_certificate_that_would_not_be_let_in_is_noticed(pki: dict[str, Certificate]) -> None:
    with pytest.raises(LinkRefused):
        link_variables(settings(pki, "stranger"), {})
    own = {"HISCORE_TLS_CERT": str(pki["caller"].cert), "HISCORE_TLS_KEY": str(pki["caller"].key)}
    found = link_variables(settings(pki, "stranger"), own)
    assert found["HISCORE_TLS_CERT"] == own["HISCORE_TLS_CERT"]


def test_what_the_environment_says_stays(pki: dict[str, Certificate]) -> None:
    given = {"HISCORE_TLS_CA": str(pki["ca"].cert), "HISCORE_TLS_NAME": "name"}
    assert link_variables(settings(pki), given) == given


def test_without_tls_and_for_models_elsewhere_nothing_is_said(pki: dict[str, Certificate]) -> None:
    assert link_variables(ServeSettings(), {}) == {}
    assert link_variables(settings(pki, api_backend="elsewhere:8001"), {}) == {}


def test_files_that_are_no_certificates(pki: dict[str, Certificate], tmp_path: Path) -> None:
    (tmp_path / "nothing").write_text("")
    with pytest.raises(LinkRefused):
        link_variables(ServeSettings(tls_cert=tmp_path / "nothing", tls_key=pki["server"].key), {})


def test_names() -> None:
    names = (("email", "a@b"), ("DNS", "*.example.org"), ("DNS", "other"))
    assert name_in({"subjectAltName": names}) == "api.example.org"
    with pytest.raises(LinkRefused, match="names no host"):
        name_in({"subject": ()})
