import asyncio
import time

from hiscore.api.models import Models
from hiscore_client import AsyncScoreClient
from tests.client.faulty_server import FaultyServer, serving
from tests.support.timeouts import TIMEOUT_S

# A connection takes its time, and until then all calls go to the other server.


def test_calls_go_to_every_server_behind_the_name() -> None:
    """Or the API, by itself in front of many pods, would keep to the first; here the name is a list."""
    servers = FaultyServer(), FaultyServer()

    async def call(address: str) -> None:
        models = Models(address, ["score"], timeout_s=TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while min(len(server.requests) for server in servers) < 3 and time.monotonic() < deadline:
            await models.score_text("a", ["b"], labels=["c"])
        await models.close()

    async def call_by_default(address: str, calls: int) -> None:
        async with AsyncScoreClient(address) as client:
            for _ in range(calls):
                await client.score("a", ["b"], labels=["c"])

    with serving(servers[0]) as first, serving(servers[1]) as second:
        address = f"ipv4:{first},{second}"
        asyncio.run(call(address))
        counts = [len(server.requests) for server in servers]
        assert min(counts) == 3
        # The control: the client's default.
        for server in servers:
            server.requests.clear()
        asyncio.run(call_by_default(address, sum(counts)))
        assert 0 in [len(server.requests) for server in servers]
