"""Pools of blocks: all or nothing, no block to two, none freed twice; and what a call needs of each pool."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.block_pool import BlockPool
from hiscore.decoding.page_needs import PagesNeeded, check_fits, pages_needed
from hiscore.decoding.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import Code, PoolExhausted, RequestError
from tests.support.decode_worker import TINY


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
    assert (
        pages_needed(call(tokens, 100, sparse), tokens, replace(TINY, dense=dense, block_size=block)) == needs
    )


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
