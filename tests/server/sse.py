"""Server-sent events of the HTTP API, read as they come."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hiscore.launcher.api import Api
from tests.support.timeouts import TIMEOUT_S


@contextmanager
def events(api: Api, path: str, body: Any) -> Iterator[Iterator[Any]]:
    """The data of all events but ``[DONE]``, which must be the last; leaving the block closes the connection."""
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request(
            "POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"

        def read() -> Iterator[Any]:
            ended = False
            for line in answer:
                if not line.strip():
                    continue
                assert not ended
                assert line.startswith(b"data: "), line
                data = line.removeprefix(b"data: ").strip()
                ended = data == b"[DONE]"
                if not ended:
                    yield json.loads(data)
            assert ended

        yield read()
    finally:
        connection.close()


def all_events(api: Api, path: str, **body: Any) -> list[Any]:
    with events(api, path, body) as read:
        return list(read)
