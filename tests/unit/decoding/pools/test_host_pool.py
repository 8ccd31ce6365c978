"""Blocks of the host pool: held by several, cached, found again, and evicted least recently used first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.pools.host_pool import HostPool
from hiscore.errors import PoolExhausted

A, B, C, D = (bytes([each]) * 16 for each in range(4))


def test_what_is_released_is_found_until_its_memory_is_needed() -> None:
    pool = HostPool(4)
    blocks = pool.allocate(3)
    pool.publish([A, B], blocks[:2])
    assert pool.release(blocks).tolist() == [blocks[2]]  # nobody could find the third
    assert (pool.num_free, pool.num_used, pool.num_cached) == (4, 0, 2)
    assert pool.find([A, B, C]).tolist() == blocks[:2].tolist()
    pool.allocate(2)  # what holds nothing is taken first
    assert len(pool.find([A, B])) == 2
    pool.allocate(1)  # then the end of a sequence
    assert pool.find([A, B]).tolist() == [blocks[0]]
    with pytest.raises(PoolExhausted):
        pool.allocate(2)


def test_the_least_recently_used_is_evicted() -> None:
    pool = HostPool(2)
    blocks = pool.allocate(2)
    pool.publish([A, B], blocks)
    pool.release(blocks[:1])
    pool.release(blocks[1:])
    pool.hold(pool.find([A]))
    pool.release(blocks[:1])
    pool.allocate(1)
    assert (len(pool.find([A])), len(pool.find([B]))) == (1, 0)


def test_a_block_is_free_when_its_last_holder_has_left() -> None:
    pool = HostPool(1)
    block = pool.allocate(1)
    pool.publish([A], block)
    pool.hold(pool.find([A]))
    assert pool.is_held(block).all()
    assert not pool.held_once(block).any()
    pool.release(block)
    assert (pool.num_free, pool.held_once(block).tolist()) == (0, [True])
    pool.release(block)
    assert pool.num_free == 1
    with pytest.raises(ValueError, match="double free"):
        pool.release(block)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=60))
def test_no_block_is_given_to_two(moves: list[tuple[int, int]]) -> None:
    """Sequences begin alike, take what they find, and leave in any order."""
    pool, held = HostPool(8), list[np.ndarray]()
    for kind, number in moves:
        hashes = [bytes([kind, at]) * 8 for at in range(number)]
        if kind and held:
            blocks = held.pop(number % len(held))
            pool.release(blocks)
            continue
        found = pool.find(hashes)
        pool.hold(found)
        if number - len(found) > pool.num_free:
            pool.release(found)
            continue
        new = pool.allocate(number - len(found))
        assert not np.isin(new, np.concatenate([np.empty(0, np.int32), *held])).any()
        blocks = np.concatenate((found, new))
        assert len(set(blocks.tolist())) == number
        pool.publish(hashes, blocks)
        held.append(blocks)
        assert pool.num_used == len(set(np.concatenate(held).tolist()))
    for blocks in held:
        pool.release(blocks)
    assert pool.num_free == 8


def test_what_is_evicted_is_told_at_once_the_least_recently_used_first() -> None:
    told: list[list[int]] = []
    pool = HostPool(4, lambda blocks: told.append(blocks.tolist()))
    blocks = pool.allocate(4)
    pool.publish([A, B, C], blocks[:3])
    pool.release(blocks)
    pool.allocate(1)  # what nobody could find is not evicted
    assert told == []
    pool.allocate(2)
    assert told == [blocks[[2, 1]].tolist()]
    assert pool.find([A, B]).tolist() == blocks[:1].tolist()


def test_what_is_published_stays_so() -> None:
    """Neither another block under its hash nor another hash of its block takes its place."""
    pool = HostPool(3)
    blocks = pool.allocate(3)
    pool.publish([A, B], blocks[:2])
    pool.publish([A, C, D], blocks[[2, 1, 2]])
    assert [pool.find([each]).tolist() for each in (A, B, C)] == [[blocks[0]], [blocks[1]], []]
    assert pool.find([D]).tolist() == [blocks[2]]
    assert pool.can_be_found(blocks).all()
