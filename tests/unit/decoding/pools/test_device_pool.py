"""Pages of the device buffers: cached under blocks of the host, taken over, evicted when others need them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.pools.device_pool import DevicePool
from hiscore.decoding.pools.host_pool import HostPool
from hiscore.errors import PoolExhausted

ALL = np.ones(2, bool)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_what_was_cached_is_taken_over_where_it_is() -> None:
    pool = DevicePool(6, 1, blocks=10)
    pages = pool.allocate(3)
    assert pool.cache(ints(7, 8, 9), np.array([True, True, False]), pages).tolist() == [pages[2]]
    pool.free(pages[2:])
    assert (pool.num_free, pool.num_cached, pool.num_used) == (6, 2, 0)
    assert pool.take(ints(7, 5, 8)).tolist() == [[pages[0]], [-1], [pages[1]]]
    assert (pool.num_free, pool.num_cached, pool.num_used) == (4, 0, 2)
    assert pool.take(ints(7)).tolist() == [[-1]]  # once
    pool.free(pages[:2])


def test_a_cached_page_is_not_freed_by_whom_it_belonged_to() -> None:
    pool = DevicePool(4, 2, blocks=2)
    pages = pool.allocate(4)
    pool.cache(ints(0, 1), ALL, pages)
    with pytest.raises(ValueError, match="double free"):
        pool.free(pages[:1])


def test_the_least_recently_used_is_evicted_a_sequences_end_before_its_beginning() -> None:
    pool = DevicePool(5, 1, blocks=4)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.cache(ints(0, 1), ALL, first)
    pool.cache(ints(2, 3), ALL, second)
    assert not np.isin(pool.allocate(1), (first, second)).any()
    assert [int(pool.allocate(1)[0]) for _ in range(3)] == [first[1], first[0], second[1]]
    with pytest.raises(PoolExhausted):
        pool.allocate(2)
    assert pool.num_cached == 1  # and nothing is evicted for it


def test_what_the_host_evicts_is_evicted() -> None:
    """Its block is another's then: whoever found its pages would have other tokens in dense layers."""
    pool = DevicePool(4, 1, blocks=2)
    host = HostPool(2, pool.evict)
    blocks, pages = host.allocate(2), pool.allocate(2)
    host.publish([b"a", b"b"], blocks)
    assert host.can_be_found(blocks).tolist() == [True, True]
    host.release(blocks)
    pool.cache(blocks, host.can_be_found(blocks), pages)
    host.allocate(1)
    assert host.can_be_found(blocks).tolist() == [True, False]
    assert pool.take(blocks).tolist() == [[pages[0]], [-1]]


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_no_page_has_two_owners_and_all_come_back(block_pages: int, moves: list[tuple[int, int]]) -> None:
    """Sequences of some blocks come, take over what is cached, and end or are preempted; blocks are evicted."""
    pool, held = DevicePool(6 * block_pages, block_pages, blocks=6), list[tuple[np.ndarray, np.ndarray]]()
    contents: dict[int, int] = {}  # what is in each page: the block, or nothing of use
    for kind, number in moves:
        if kind == 0:  # those that begin at the same block share the following ones
            blocks = ints(*(each for each in range(number, 6) if all(each not in b for b, _ in held)))
            if len(blocks) * block_pages > pool.num_free:
                continue
            pages = pool.take(blocks)
            for block, found in zip(blocks.tolist(), pages.tolist(), strict=True):
                assert found == [-1] * block_pages or {contents[page] for page in found} == {block}
            pages = pages.ravel()
            pages[pages < 0] = pool.allocate(int((pages < 0).sum()))
            contents |= dict(zip(pages.tolist(), np.repeat(blocks, block_pages).tolist(), strict=True))
            held.append((blocks, pages))
        elif kind == 1 and held:
            blocks, pages = held.pop(number % len(held))
            pool.free(pool.cache(blocks, blocks % 3 > 0, pages))
        elif kind == 2 and held:
            pool.free(held.pop(number % len(held))[1])
        elif kind == 3:
            pool.evict(ints(number))
        owned = np.concatenate([ints(), *(pages for _, pages in held)])
        assert len(np.unique(owned)) == len(owned) == pool.num_used == pool.size - pool.num_free
    for _, pages in held:
        pool.free(pages)
    assert sorted(pool.allocate(pool.size).tolist()) == list(range(pool.size))
    assert pool.num_cached == 0
