"""The HTTP API in front of a server that tests share, called without any client of ours."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from hiscore.launcher import Server
from hiscore.launcher import api as api_module
from hiscore.launcher.api import Api
from hiscore.settings import ServeSettings
from tests.support.timeouts import TIMEOUT_S, wait_until


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HasUrl(Protocol):
    """An API, however it was started."""

    @property
    def url(self) -> str: ...


@contextmanager
def api_of(
    server: Server, log: Path, max_body: int | None = None, labels: Sequence[str] = (), **settings: Any
) -> Iterator[Api]:
    """The API of a running server, on a free port; max_body: bytes of its bodies."""
    given = {"model": str(server.checkpoint), "api_port": 0, "prompt_labels": ",".join(labels)}
    chosen = ServeSettings(**{**given, **settings})
    api = Api(chosen, server.checkpoint, server.grpc_url, server.models, log)
    # Only while it starts: other tests start theirs while this one runs.
    with ExitStack() as patches:
        if max_body:
            patches.enter_context(mock.patch.object(api_module, "body_bytes", return_value=max_body))
        api.start()
    try:
        yield api
    finally:
        api.stop()


def call(api: HasUrl, path: str, body: Any = None, **headers: str) -> Reply:
    """POST JSON or bytes, or GET without a body. Names of headers have underscores for hyphens."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if data is not None:
        given = {"content-type": "application/json", **given}
    request = urllib.request.Request(api.url + path, data, given)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return Reply(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())


def wait_for_metric(api: Api, text: str) -> None:
    """Wait until the API's page of metrics has a text: an answer is counted once it has been sent."""
    wait_until(lambda: text in call(api, "/metrics").body.decode(), lambda: text)
