import asyncio
import time

from hiscore.api.models import Models
from tests.client.faulty_server import FaultyServer, serving
from tests.support.timeouts import TIMEOUT_S

# A connection takes its time, and until then all calls go to the other server.


def test_calls_go_to_every_server_behind_the_name() -> None:
    """Or the API, by itself in front of many pods, would keep to the first; here the name is a list.

    tests/client/test_load_balancing.py has the control, the client's default.
    """
    servers = FaultyServer(), FaultyServer()

    async def call(address: str) -> None:
        models = Models(address, ["score"], timeout_s=TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while min(len(server.requests) for server in servers) < 3 and time.monotonic() < deadline:
            await models.score_text("a", ["b"], labels=["c"])
        await models.close()

    with serving(servers[0]) as first, serving(servers[1]) as second:
        asyncio.run(call(f"ipv4:{first},{second}"))
    assert min(len(server.requests) for server in servers) == 3
