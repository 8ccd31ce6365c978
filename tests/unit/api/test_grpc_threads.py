"""gRPC's threads in the API's process: none stands between the socket and the thread that waits for an answer."""

import os
import subprocess
import sys

import pytest

from tests.client.faulty_server import FaultyServer, serving

CALLS = {None: 5_000, "": 100}
# Whether one of so many calls of the API's models ended without a turn of gRPC's own threads, and whether gRPC
# knew all that it was told. These threads also keep time, on a busy machine during most calls.
SCRIPT = """
import asyncio, sys
from pathlib import Path
from hiscore.api.models import Models

def turns():
    tasks = [each for each in Path("/proc/self/task").iterdir()]
    return sum(int((each / "schedstat").read_text().split()[2]) for each in tasks
               if (each / "comm").read_text().startswith("event_engine"))

async def call(count):
    models = Models(sys.argv[1], ["scorer"], 60.0)
    await models.score_ids([1], [[2]], [3])
    found = False
    while count and not found:
        before, count = turns(), count - 1
        await models.score_ids([1], [[2]], [3])
        found = turns() == before
    print(found)
    await models.close()

asyncio.run(call(int(sys.argv[2])))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("of_the_caller", [None, ""])
def test_answers_come_without_the_event_engine(of_the_caller: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    if of_the_caller is not None:
        environment["GRPC_EXPERIMENTS"] = of_the_caller
    with serving(FaultyServer()) as address:
        command = [sys.executable, "-c", SCRIPT, address, str(CALLS[of_the_caller])]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "experiment" not in ran.stderr, "this version of gRPC has no such experiment any more"
    # The control: what the environment says already stays.
    assert ran.stdout.strip() == str(of_the_caller is None)
