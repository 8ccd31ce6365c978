"""The HTTP API beside the models: whatever becomes of it, they are served."""

import sys
from pathlib import Path

import pytest

from hiscore.launcher import LaunchError
from hiscore.launcher.api import Api
from hiscore.launcher.child import Child
from hiscore.settings import ServeSettings
from tests.support.timeouts import wait_until


class Dying(Api):
    """An API whose process ends at once."""

    def _launch(self) -> None:
        self._child = Child([sys.executable, "-c", "raise SystemExit(3)"], {}, None)


@pytest.mark.parametrize("backend", [None, "elsewhere:1"])
def test_an_api_that_dies_ends_nothing_but_itself(backend: str | None) -> None:
    """The control: an API alone has nothing else to serve."""
    api = Dying(
        ServeSettings(api_port=0, api_backend=backend, max_restarts=0), Path(), "localhost:1", ["score"]
    )
    with pytest.raises(LaunchError, match="stopped with exit code 3"):
        api.start()
    api.watch()
    assert api._child is None, "it is not tried again at once"
    api._launch()
    child = api._child
    assert child is not None
    wait_until(lambda: child.exit_code() is not None)
    if backend:
        with pytest.raises(LaunchError, match="stopped by itself with exit code 3"):
            api.watch()
    else:
        api.watch()
    assert api._child is None


def test_an_api_without_its_certificate_ends_nothing_either(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).touch()
    settings = ServeSettings(api_port=0, tls_cert=tmp_path / "cert", tls_key=tmp_path / "key")
    api = Api(settings, Path(), "localhost:1", ["score"])
    with pytest.raises(LaunchError, match="the HTTP API cannot be started"):
        api.start()
    api._restart_at = 0.0
    api.watch()
    assert api._child is None
    assert api._restart_at > 0, "it is not tried again at once"
