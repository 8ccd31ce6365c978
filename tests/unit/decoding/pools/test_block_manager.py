"""Pools of blocks: all or nothing, no block to two, none freed twice; and what a call needs of each pool."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.decoding.pools.page_needs import NOTHING, PagesNeeded, check_fits, pages_needed
from hiscore.decoding.pools.prefix_cache import PrefixCache
from hiscore.decoding.pools.prompt_pages import staging_pages_in
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Sequence
from hiscore.errors import Code, PoolExhausted, RequestError
from tests.support.decode_worker import TINY, sequence_of


def call(prompt: int, max_tokens: int, sparse: bool = True) -> DecodeCall:
    return DecodeCall(np.zeros(prompt, np.int32), SamplingParams(max_tokens=max_tokens, sparse=sparse), 0.0)


def test_what_came_back_last_is_given_out_first_in_the_same_order() -> None:
    pool = BlockPool(8)
    pool.allocate(2)
    blocks = pool.allocate(3)
    pool.free(blocks)
    assert pool.allocate(3).tolist() == blocks.tolist()


@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_a_page_has_one_owner(size: int, moves: list[tuple[bool, int]]) -> None:
    pool = BlockPool(size)
    held: list[np.ndarray] = []
    for take, number in moves:
        if take and number > pool.num_free:
            with pytest.raises(PoolExhausted):
                pool.allocate(number)
        elif take:
            held.append(pool.allocate(number))
            assert held[-1].dtype == np.int32
            assert len(held[-1]) == number
        elif held:
            pool.free(held.pop(number % len(held)))
        owned = np.concatenate([np.empty(0, np.int32), *held])
        assert len(set(owned.tolist())) == len(owned) == pool.num_used == size - pool.num_free
        assert set(owned.tolist()) <= set(range(size))
    for pages in held:
        pool.free(pages)
    assert sorted(pool.allocate(size).tolist()) == list(range(size))


@pytest.mark.parametrize("wrong", [[0, 1], [1, 1], [3]])
def test_what_nobody_holds_is_not_given_back(wrong: list[int]) -> None:
    pool = BlockPool(4)
    pages = pool.allocate(3)
    pool.free(pages[:1])
    assert pages.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="double free"):
        pool.free(np.array(wrong, np.int32))
    assert pool.num_used == 2  # and then none has been
    pool.free(pages[1:])
    assert pool.num_free == 4


@pytest.mark.parametrize(
    ("tokens", "sparse", "dense", "block", "needs"),
    [
        (1, True, False, 4, PagesNeeded(1, 1, 1)),
        (3, True, False, 4, PagesNeeded(1, 1, 1)),
        (4, True, False, 4, PagesNeeded(2, 2, 1)),  # room for the next token
        (17, True, False, 4, PagesNeeded(5, 5, 2)),  # all of it fits what a sparse sequence may have
        (21, True, False, 4, PagesNeeded(6, 5, 2)),
        (21, False, False, 4, PagesNeeded(6, 6, 2)),
        (21, False, True, 4, PagesNeeded(6, 0, 2)),
        (21, False, False, 16, PagesNeeded(2, 8, 2)),  # blocks of four pages
        (118, False, False, 16, PagesNeeded(8, 30, 8)),  # not beyond the context
    ],
)
def test_needs(tokens: int, sparse: bool, dense: bool, block: int, needs: PagesNeeded) -> None:
    config = replace(TINY, dense=dense, block_size=block)
    kept = min(needs.device, TINY.buffer_pages) if sparse else needs.device
    assert pages_needed(call(tokens, 100, sparse), tokens, config) == needs._replace(kept=kept)


IN_BUFFERS = replace(
    TINY, page_size=16, prompts_in="buffers", resident_if_it_fits=True, staging_pages=0, reserved_pages=8
)
IN_DENSE = replace(TINY, page_size=16, prompts_in="dense", dense=True, staging_pages=0)


def started(tokens: int, resident: bool = False) -> Sequence:
    each = sequence_of(tokens, max_tokens=9)
    each.resident = resident
    return each


def test_a_prompt_is_prefilled_where_it_stays_and_borrows_pages_only_if_it_does_not() -> None:
    blocks = BlockManager(IN_BUFFERS)
    for name, tokens, resident in (("resident", 100, True), ("short", 60, False), ("spilled", 100, False)):
        each = started(tokens, resident)
        needed = blocks.needed_to_start(each)
        assert (needed.device, needed.staging, needed.kept) == {
            "resident": (7, 0, 5), "short": (4, 0, 4), "spilled": (5, 7, 5),
        }[name]  # fmt: skip
        if name == "spilled":
            break
        assert blocks.can_allocate(needed)
        blocks.allocate(each, needed)
        assert (
            each.held.staging_pages.tolist() == each.held.device_pages.tolist()
        )  # of 16 tokens each, as staging's
    # 9 device pages are left: for a buffer of 5, but not for a prompt of 7 beside it.
    assert not blocks.can_allocate(needed)
    # The longest is spilled, and leaves its own: now there is room, and what was borrowed comes back.
    free = blocks.device.num_free
    resident = next(each for each in blocks._holders if each.resident)
    blocks.free(resident)
    assert blocks.can_allocate(needed)
    blocks.allocate(each, needed)
    assert not np.isin(each.held.staging_pages, each.held.device_pages).any()
    assert len(each.held.staging_pages) == 7
    blocks.free_staging(each)
    assert blocks.device.num_free == free + 7 - 5
    blocks.free(each)
    assert blocks.device.num_free == free + 7


def test_what_sequences_keep_leaves_the_reserve_to_prompts() -> None:
    """20 pages, 8 of them reserved: two buffers of 5 leave 2 for others that keep what they have."""
    blocks = BlockManager(IN_BUFFERS)
    for _ in range(2):
        each = started(100)
        blocks.allocate(each, blocks.needed_to_start(each))
        blocks.free_staging(each)
    assert blocks.device.num_free == 10
    short, longer = (blocks.needed_to_start(started(tokens)) for tokens in (20, 40))
    assert (short.device, longer.device) == (2, 3)
    assert blocks.can_allocate(short)
    assert not blocks.can_allocate(longer)
    # Spilling others would not help: they keep as much.
    assert not blocks.lacks_device_pages(longer, NOTHING)
    # The control: without the reserve there is room.
    free = BlockManager(replace(IN_BUFFERS, reserved_pages=0))
    for _ in range(2):
        each = started(100)
        free.allocate(each, free.needed_to_start(each))
        free.free_staging(each)
    assert free.can_allocate(longer)


def test_dense_prompts_are_prefilled_into_the_pages_that_they_keep() -> None:
    blocks = BlockManager(IN_DENSE)
    each = started(100)
    blocks.allocate(each, blocks.needed_to_start(each))
    assert each.held.staging_pages.tolist() == each.held.host_pages.tolist()
    blocks.free_staging(each)
    assert blocks.host.num_used == 7  # they are its own
    larger = replace(IN_DENSE, page_size=32)
    assert staging_pages_in(np.array([3, 1], np.int32), larger).tolist() == [6, 7, 2, 3]


@pytest.mark.parametrize(
    ("pool", "fits", "too_much", "sparse", "message"),
    [
        ({}, (100, 20), (100, 21), True, "of 100 tokens and max_tokens 21 make 121 .* at most 120 .MAX_CONTEXT"),
        ({"host_pages": 20}, (60, 20), (60, 21), True, r"81 tokens: the host's pool holds 80 \(HOST_KV_BYTES"),
        (
            {"device_pages": 7}, (1, 27), (1, 28), False,
            r"29 tokens: the device's pool without selection, as parameter 'sparse' asks, holds 28",
        ),
        ({"staging_pages": 3}, (48, 9), (49, 1), True, "the prompt has 49 tokens: at most 48 can be prefilled"),
    ],
)  # fmt: skip
def test_what_could_never_fit_is_refused_with_the_bound(
    pool: dict[str, int], fits: tuple[int, int], too_much: tuple[int, int], sparse: bool, message: str
) -> None:
    cache_config = replace(TINY, **pool)
    check_fits(call(*fits, sparse), cache_config)
    with pytest.raises(RequestError, match=message) as refused:
        check_fits(call(*too_much, sparse), cache_config)
    assert refused.value.code is Code.INVALID_ARG


@pytest.mark.parametrize("ends", ["the other", "itself"])
def test_blocks_that_are_copied_are_held_until_they_are_in_staging(ends: str) -> None:
    """Whoever computed them may end before that: nobody else may have them then."""
    config = replace(TINY, prefix_cache=True, host_pages=12)
    blocks = BlockManager(config)
    cache = PrefixCache(blocks.host, blocks.states, config)
    first, second = started(20), started(20)
    for each in (first, second):
        found, needed = cache.take(each), pages_needed(each.call, 20, config)
        blocks.allocate(each, needed._replace(host=needed.host - len(found.taken)), found)
        cache.publish(each, blocks.blocks_of(each), 20)
    assert second.held.source_blocks.tolist() == first.held.host_pages[:4].tolist()
    assert not np.isin(second.held.host_pages, first.held.host_pages).any()
    if ends == "itself":
        blocks.free(second)
        assert blocks.host.is_held(first.held.host_pages).all()
    else:
        blocks.free(first)
        assert not set(blocks.host.allocate(blocks.host.num_free).tolist()) & set(
            second.held.source_blocks.tolist()
        )
        borrowed = second.held.source_blocks
        blocks.free_staging(second)
        assert not blocks.host.is_held(borrowed).any()
