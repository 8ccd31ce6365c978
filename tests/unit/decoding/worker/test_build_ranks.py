"""Workers of several ranks, as settings ask for them: what the ranks agree on, and who is named in a refusal."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.worker.build import make_worker
from hiscore.parallel.leader import Ranks
from hiscore.parallel.rank import RankError
from hiscore.server.server_resources import ServerResources
from hiscore.settings import DecodeSettings
from tests.support import decode_rank_work
from tests.support.decode_client import serving
from tests.support.decoding import prompt

pytestmark = pytest.mark.exhaustive


def make(ranks: Ranks, path: Callable[[str], Path]) -> Worker:
    settings = DecodeSettings(max_streams=2, host_kv_bytes=2**24, device_kv_bytes=2**24, selector="quest")
    return make_worker(settings, path("qwen3"), ranks, ServerResources())


@pytest.mark.parametrize("lacking", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("without_rows", [(), (1,)])
def test_all_ranks_prefill_by_flashinfer_or_none_does(
    lacking: tuple[int, ...], without_rows: tuple[int, ...], ranks: Ranks
) -> None:
    """Over rows, too: a rank alone would wait for the others in another graph."""
    used = ranks.do(partial(decode_rank_work.agreed, lacking=lacking, without_rows=without_rows))
    assert used == [[not lacking, not lacking and not without_rows]] * 2


def test_a_rank_that_cannot_load_is_named_and_the_others_go_on(
    ranks: Ranks, path: Callable[[str], Path]
) -> None:
    ranks.prepare(partial(decode_rank_work.refuse_to_pin, which=1))
    try:
        with pytest.raises(RankError, match=r"rank 1 of 2: HostMemoryRefused: .* HOST_KV_BYTES lower"):
            make(ranks, path)
    finally:
        ranks.prepare(decode_rank_work.pin_again)
    works(make(ranks, path))


def works(worker: Worker) -> None:
    with serving(worker) as client:
        outcome = client.submit(prompt(20), 4)
        client.wait([outcome])
    assert (client.failures, outcome.end) == ([], "length")
