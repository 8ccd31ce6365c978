import socket
from collections.abc import Iterator

import pytest

from tests.client.faulty_server import FaultyServer, serving


@pytest.fixture
def server() -> FaultyServer:
    return FaultyServer()


@pytest.fixture
def url(server: FaultyServer) -> Iterator[str]:
    with serving(server) as address:
        yield address


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address where nothing listens, and nothing else can start to while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
