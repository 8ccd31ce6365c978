import pytest

from hiscore_client import InvalidRequest
from hiscore_client.config import make_config


def test_address_from_argument_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def url(argument: str | None) -> str:
        return make_config(argument, None, None, 4, None).url

    monkeypatch.delenv("HISCORE_URL", raising=False)
    assert url(None) == "localhost:8001"
    monkeypatch.setenv("HISCORE_URL", "there:9")
    assert url(None) == "there:9"
    assert url("here:8") == "here:8"
    with pytest.raises(InvalidRequest, match="without a scheme"):
        url("http://here:8")
