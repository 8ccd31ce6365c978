from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore_client import ChunkLimits
from hiscore_client.chunking import split_into_chunks


@given(
    sizes=st.lists(st.integers(0, 30), max_size=40),
    fixed=st.integers(0, 20),
    max_items=st.integers(1, 6),
    max_size=st.integers(1, 60),
)
def test_chunks_cover_all_items_in_order_within_limits_and_no_sooner_cut_than_needed(
    sizes: list[int], fixed: int, max_items: int, max_size: int
) -> None:
    chunks = split_into_chunks(sizes, fixed, max_items, max_size)
    places = range(len(sizes))
    assert [place for chunk in chunks for place in places[chunk]] == list(places)

    def fits(held: list[int]) -> bool:
        return len(held) <= max_items and fixed + sum(held) <= max_size

    for chunk in chunks:
        assert fits(sizes[chunk]) or len(sizes[chunk]) <= 1
    for chunk, following in pairwise(chunks):
        assert not fits(sizes[chunk] + sizes[following][:1])


@pytest.mark.parametrize("bad", [{"max_items": 0}, {"max_bytes": 0}, {"max_tokens": -1}])
def test_limits_below_one_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ChunkLimits(**bad)


def test_an_item_beyond_the_limit_is_a_chunk_of_its_own_and_no_chunk_is_empty() -> None:
    assert split_into_chunks([30, 1, 30], 0, 5, 10) == [slice(0, 1), slice(1, 2), slice(2, 3)]
