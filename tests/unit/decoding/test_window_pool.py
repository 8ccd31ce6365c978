"""Blocks of windows: shared, left behind, and evicted in the order in which they are of use."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.window_pool import WindowPool

A, B, C, D = (bytes([each]) * 16 for each in range(4))


def left_behind(pool: WindowPool, name: bytes) -> int:
    block = pool.allocate(1)
    pool.publish([name], block)
    pool.retire(int(block[0]))
    return int(block[0])


def test_what_was_left_behind_is_evicted_before_an_end() -> None:
    pool = WindowPool(3)
    end = pool.allocate(1)
    pool.publish([A], end)
    pool.release(end)
    left_behind(pool, B)
    left_behind(pool, C)
    assert (pool.num_free, pool.num_cached) == (3, 3)
    for gone, stays in ((B, [A, C]), (C, [A]), (A, [])):
        pool.allocate(1)
        assert not len(pool.find([gone]))
        assert all(len(pool.find([name])) for name in stays)


def test_what_was_found_is_as_good_as_an_end() -> None:
    pool = WindowPool(2)
    first = left_behind(pool, A)
    left_behind(pool, B)
    pool.hold(pool.find([A]))
    pool.retire(first)
    pool.allocate(1)
    assert (len(pool.find([A])), len(pool.find([B]))) == (1, 0)


def test_a_block_that_two_hold_counts_twice() -> None:
    """So that each of them can go on: nothing is written to a block that others see."""
    pool = WindowPool(2)
    block = pool.allocate(1)
    pool.publish([A], block)
    pool.hold(pool.find([A]))
    assert (pool.num_free, pool.num_used) == (0, 2)
    pool.retire(int(block[0]))
    assert pool.num_free == 1
    assert pool.find([A]).tolist() == block.tolist()
    new = pool.allocate(1)
    assert new.tolist() != block.tolist()
    pool.release(block)
    pool.release(new)
    assert (pool.num_free, pool.num_cached) == (2, 1)


def test_a_block_that_was_given_out_again_is_not_published() -> None:
    pool = WindowPool(1)
    block = int(pool.allocate(1)[0])
    turn = pool.retire(block)
    assert int(pool.allocate(1)[0]) == block
    again = pool.retire(block)
    pool.publish_retired(A, block, turn)
    assert not len(pool.find([A]))
    pool.publish_retired(A, block, again)
    assert pool.find([A]).tolist() == [block]


def test_a_prompt_goes_on_where_a_whole_window_is_there() -> None:
    pool = WindowPool(8)
    hashes = [bytes([each]) * 16 for each in range(8)]
    for at in (0, 1, 3, 4, 5):
        left_behind(pool, hashes[at])
    assert pool.longest_with_window(hashes, 2) == 6
    assert pool.longest_with_window(hashes[:5], 2) == 5
    assert pool.longest_with_window(hashes[:4], 2) == 2  # the window before 4 lacks block 2
    assert pool.longest_with_window(hashes[:1], 2) == 1  # all that there is before 1
    assert pool.longest_with_window(hashes[2:4], 2) == 0
    assert pool.longest_with_window(hashes, 0) == 8
    assert pool.longest_with_window([], 2) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=80))
def test_none_is_given_to_two_and_all_come_back(moves: list[tuple[int, int]]) -> None:
    """Sequences of one block find, share, leave behind and end."""
    pool, held = WindowPool(4), list[int]()
    for kind, number in moves:
        if kind < 2:  # begin
            found = pool.find([bytes([number])])
            if pool.num_free:
                if len(found):
                    pool.hold(found)
                block = found if len(found) else pool.allocate(1)
                assert len(found) or int(block[0]) not in held
                pool.publish([bytes([number])], block)
                held.append(int(block[0]))
        elif held and kind == 2:
            pool.release(np.array([held.pop(number % len(held))], np.int32))
        elif held:  # go on: there is always another block for that
            pool.retire(held.pop(number % len(held)))
            block = int(pool.allocate(1)[0])
            assert block not in held
            held.append(block)
        assert pool.num_used == len(held)
        assert len(set(held)) <= 4
    for each in held:
        pool.release(np.array([each], np.int32))
    assert pool.num_free == 4
