"""Ranks as processes: what they exchange, that they see the same bytes, and what happens if one is lost."""

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from hiscore.parallel.group import FEW
from hiscore.parallel.leader import GRACE_S, Ranks, lead
from hiscore.parallel.rank import Leader, RankError
from tests.support import rank_work
from tests.support.tiers import first_of
from tests.support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
"""On the slowest machine. How soon a rank is found lost is tested by a clock of its own (`test_heartbeat.py`)."""
LEADS = """
import time, torch
from hiscore.parallel.leader import Ranks
ranks = Ranks([torch.device("cpu")] * 2)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with closing(Ranks([CPU] * 3)) as ranks:
        yield ranks


def test_sums_maxima_and_parts_are_those_of_all_ranks(ranks: Ranks) -> None:
    total, most, parts = ranks.do(partial(rank_work.exchange, mine=1))
    assert total.tolist() == [[6.0, 6.0]] * 3
    assert most.tolist() == [[3.0, 3.0]] * 3
    assert parts.tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]] * 3


@pytest.mark.parametrize("terms", [(1e16, 1.0, -1e16), (1.0, 1e16, -1e16), (1e16, -1e16, 1.0)])
def test_sums_are_added_in_the_order_of_ranks_everywhere(ranks: Ranks, terms: tuple[float, ...]) -> None:
    """As long as they are few. Gloo's own reduction adds in several orders, and gets other sums."""
    found = ranks.do(partial(rank_work.sum_of, terms=list(terms), length=FEW))
    assert set(found.tolist()) == {(terms[0] + terms[1]) + terms[2]}


def test_many_numbers_are_added_too(ranks: Ranks) -> None:
    found = ranks.do(partial(rank_work.sum_of, terms=[1.0, 2.0, 4.0], length=FEW + 3))
    assert set(found.tolist()) == {7.0}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("length", [7, 8])
def test_numbers_of_ranks_are_merged_to_the_bit(ranks: Ranks, dtype: torch.dtype, length: int) -> None:
    """All bits are there, with -0 and NaN, which a sum would change: the control."""
    bits = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 8 * length).astype(np.uint8))
    numbers = bits.view(dtype)[:length].clone()
    if dtype.is_floating_point:
        numbers[1], numbers[2] = -0.0, float("nan")
        assert not torch.equal((numbers + 0.0).view(torch.uint8), numbers.view(torch.uint8))
    merged = ranks.do(partial(rank_work.merge, numbers=numbers))
    assert torch.equal(merged.view(torch.uint8), numbers.view(torch.uint8))


def test_all_ranks_see_the_bytes_of_each_message_in_order(ranks: Ranks) -> None:
    """The last is larger than any buffer of a pipe."""
    for size in (0, 1, 1_000, 5_000_000):
        payload = random.Random(size).randbytes(size)
        seen = ranks.do(partial(rank_work.digest, payload=payload))
        assert seen[::2] == [rank_work.hash_of(payload)] * 3
        assert len(set(seen[1::2])) == 3


def test_what_work_leaves_is_there_for_later_work(ranks: Ranks) -> None:
    ranks.prepare(partial(rank_work.keep, name="number", value=10))
    assert ranks.do(partial(rank_work.kept, name="number")) == [10, 11, 12]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_rank_that_cannot_prepare_is_named_and_the_others_go_on(ranks: Ranks, which: int) -> None:
    with pytest.raises(RankError, match=f"rank {which} of 3: .*no room here"):
        ranks.prepare(partial(rank_work.fail_on, which=which))
    assert ranks.do(partial(rank_work.exchange, mine=1))[1].tolist() == [[3.0, 3.0]] * 3


def test_one_device_needs_no_process() -> None:
    leader = lead([CPU])
    assert type(leader) is Leader
    total, most, parts = leader.do(partial(rank_work.exchange, mine=4))
    assert total.tolist() == most.tolist() == parts.tolist() == [[4.0, 4.0]] * 3


def test_threads_are_shared_out_and_given_back() -> None:
    before = torch.get_num_threads()
    with closing(Ranks([CPU] * 2)):
        assert torch.get_num_threads() == max(before // 2, 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("how", first_of(rank_work.KILL, rank_work.STOP), ids=["dies", "hangs"])
def test_a_rank_that_is_lost_ends_the_instance_and_leaves_nothing(how: int) -> None:
    ended, others = threading.Event(), set(psutil.Process().children())
    ranks = Ranks([CPU] * 3, end=ended.set)
    children = set(psutil.Process().children()) - others
    assert len(children) == 2
    ranks.do(partial(rank_work.exchange, mine=1))  # They have imported the module, which takes seconds.
    ranks.started()
    # The first rank waits in a sum, as it would in a forward.
    threading.Thread(target=_quietly, args=(ranks, how), daemon=True).start()
    assert ended.wait(TIMEOUT_S)
    ranks.close()
    assert not [child for child in children if child.is_running()]


@pytest.mark.exhaustive
def test_a_group_that_is_gone_writes_to_no_file_of_others(tmp_path: Path) -> None:
    """torch's store opens its file by its number when it is destroyed."""
    files = [os.open(tmp_path / str(i), os.O_CREAT | os.O_RDWR) for i in range(40)]
    free = set(files)
    _close(files)
    ranks = Ranks([CPU] * 2)
    ranks.do(partial(rank_work.exchange, mine=1))
    ranks.close()
    files = [os.open(tmp_path / str(i), os.O_CREAT | os.O_RDWR) for i in range(40)]
    # The control: the store's number was among them, and stays taken.
    # Others may be free by now: what earlier tests left is closed whenever it is collected.
    others = (Path(f"/proc/self/fd/{file}") for file in free - set(files))
    assert any("hiscore-ranks" in str(path.readlink()) for path in others if path.is_symlink())
    del ranks
    gc.collect()
    assert {os.fstat(file).st_size for file in files} == {0}
    _close(files)


@pytest.mark.parametrize("which", first_of(0, 1))
def test_work_that_fails_ends_the_instance(which: int) -> None:
    ended = threading.Event()
    with closing(Ranks([CPU] * 2, end=ended.set)) as ranks:
        if which == 0:
            with pytest.raises(ValueError, match="no room here"):
                ranks.do(partial(rank_work.fail_on, which=which))
        else:
            ranks.do(partial(rank_work.fail_on, which=which))
        assert ended.wait(TIMEOUT_S)


def test_a_leader_that_is_closed_after_a_failure_ends_nothing_more() -> None:
    """The control is the test above: it does if it is not closed."""
    ended = threading.Event()
    with closing(Ranks([CPU], end=ended.set)) as ranks, pytest.raises(ValueError, match="no room here"):
        ranks.do(partial(rank_work.fail_on, which=0))
    assert not ended.wait(2 * GRACE_S)


@pytest.mark.exhaustive
def test_followers_end_when_the_first_rank_is_killed() -> None:
    """Not even a destructor runs then."""
    first = subprocess.Popen(
        [sys.executable, "-c", LEADS], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"ready\n"
    (follower,) = psutil.Process(first.pid).children()
    assert "follower" in " ".join(follower.cmdline())
    first.kill()
    first.communicate()
    follower.wait(TIMEOUT_S)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _quietly(ranks: Ranks, how: int) -> None:
    with suppress(RuntimeError):  # gloo's, of the lost connection
        ranks.do(partial(rank_work.end_on, which=1, how=how))
