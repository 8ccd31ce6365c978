"""Places of a sequence's blocks in layers that keep a window only."""

from dataclasses import replace

from hiscore.decoding.pools.windows import Windows
from tests.support.decode_worker import TINY, sequence_of

# Blocks of 4 tokens, two pages each; a window of 10 tokens takes three places.
CONFIG = replace(
    TINY, page_size=2, block_size=4, window_pages=16, window_ring=6, window=10, context_length=40
)


def test_blocks_take_turns() -> None:
    windows, one = Windows(CONFIG), sequence_of(30, max_tokens=4)
    windows.add(one, windows.missing(one, 8))
    before, into = windows.of_chunk(one, 30)
    assert len(before) == 0
    pages = one.held.window_pages_of(0, 6).tolist()
    assert into.tolist() == (pages * 3)[:15]
    one.prefilled = 7
    before, into = windows.of_chunk(one, 6)
    assert before.tolist() == pages[:4]
    assert into.tolist() == (pages * 2)[3:7]
    assert windows.pool.num_used == 3
    windows.free(one, 1)
    assert one.held.window_pages.tolist() == pages[:2]
    assert (windows.pool.num_used, windows.behind(one, 0), windows.missing(one, 8)) == (1, 1, 2)


def test_a_sequence_goes_back_only_to_where_its_window_is() -> None:
    windows, one = Windows(CONFIG), sequence_of(8, max_tokens=4)
    windows.add(one, 3)
    one.prefilled, one.sampled = 8, 15
    assert one.length == 22
    # Before token 19 are 10 to 18; 10 to 21 have the twelve places.
    assert [windows.has(one, tokens) for tokens in (22, 20, 19, 18, 8)] == [True, True, True, False, False]
