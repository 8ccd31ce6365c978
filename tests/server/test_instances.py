"""Several instances of a model behind one queue: calls go to the one with the least to do."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from hiscore.launcher import Server
from hiscore.launcher.repository import SHIPPED
from perf.loadgen.exports import page
from tests.server.conftest import StartServer
from tests.server.counters import settled
from tests.server.generation import grpc_stream, over_grpc
from tests.support.decoding import checkpoint
from tests.support.timeouts import wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

SMALL = 12
LONG = {"max_tokens": 30_000, "ignore_eos": True}
"""A minute of work or more: cancelled long before its end, however slow all else is."""
PROMPT = [token % 400 for token in range(300)]
TOTAL = len(PROMPT) + 3 * SMALL


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random causal LM with room for `LONG`."""
    return checkpoint("llama", tmp_path_factory.mktemp("long-llama"), max_position_embeddings=2**15)


def by_device(server: Server, metric: str) -> Counter[str]:
    """A metric of each instance."""
    line = rf'^{metric}\{{(?:[^}}]*,)?device="([^"]+)"[^}}]*\}} (\S+)$'
    found = re.findall(line, page(server.metrics_url), re.MULTILINE)
    return Counter({device: int(float(value)) for device, value in found})


def in_turn(target: Path) -> Path:
    """The model repository without the wait for a turn: what Triton does by itself."""
    shutil.copytree(SHIPPED, target)
    model = target / "decode" / "1" / "model.py"
    text = model.read_text()
    assert text.count("        self.board.wait_for_turn()\n") == 1
    model.write_text(text.replace("        self.board.wait_for_turn()\n", ""))
    return target


def prompts_beside_a_long_call(server: Server) -> Counter[str]:
    """Prompt tokens that each instance prefills while one of them has a long call: its own, and small ones."""
    settled(server)
    before = by_device(server, "hiscore_decode_prompt_tokens_total")
    with grpc_stream(server, {"input_ids": PROMPT}, **LONG) as responses:
        next(responses)
        for _ in range(SMALL):
            assert len(over_grpc(server, {"input_ids": [1, 2, 3]}, max_tokens=2, ignore_eos=True).ids) == 2
        assert next(responses).reason == "", "the long call has ended too early to tell"
    # Every call was served, so this total is reached; metrics come later than answers.
    metric = "hiscore_decode_prompt_tokens_total"
    wait_until(lambda: (by_device(server, metric) - before).total() >= TOTAL)
    return by_device(server, metric) - before


def test_an_instance_that_is_busy_leaves_calls_to_one_that_is_not(
    start_server: StartServer, long_llama: Path, tmp_path: Path
) -> None:
    settings = {"models": "decode", "cpu_instances": 2, "host_kv_bytes": 2**28, "prefix_cache": False}
    prompts = prompts_beside_a_long_call(start_server(long_llama, **settings))
    assert sorted(prompts) == ["cpu:0", "cpu:1"]
    assert sorted(prompts.values()) == [3 * SMALL, len(PROMPT)]
    # The control: in turn, the busy one gets small calls, too.
    control = start_server(long_llama, model_repository=in_turn(tmp_path / "models"), **settings)
    assert sorted(prompts_beside_a_long_call(control).values())[0] < 3 * SMALL
