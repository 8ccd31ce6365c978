"""Places of a sequence's blocks in layers that keep a window only."""

from dataclasses import replace

import numpy as np

from hiscore.decoding.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Sequence
from hiscore.decoding.stop_strings import StopChecker
from hiscore.decoding.windows import Windows
from tests.support.decode_worker import TINY

# Blocks of 4 tokens, two pages each; a window of 6 tokens takes three places: two before a whole block, and that.
CONFIG = replace(
    TINY,
    page_size=2,
    block_size=4,
    window_pages=16,
    window_ring=6,
    window=6,
    prefix_cache=True,
    context_length=40,
)


def sequence(prompt: int) -> Sequence:
    params = SamplingParams(max_tokens=4)
    call = DecodeCall(np.arange(prompt, dtype=np.int32), params, 0.0)
    return Sequence(call, None, StopChecker(params, frozenset()))


def test_without_a_prefix_cache_blocks_take_turns() -> None:
    windows, one = Windows(replace(CONFIG, prefix_cache=False)), sequence(30)
    windows.add(one, windows.missing(one, 8))
    before, into = windows.enter_chunk(one, 30)
    assert len(before) == 0
    pages = one.window.pages_of(0, 6).tolist()
    assert into.tolist() == (pages * 3)[:15]
    assert one.window.numbers.tolist() == [6, 7, 5]
    assert windows.pool.num_used == 3


def test_what_a_prompt_leaves_behind_is_kept_until_its_memory_is_needed() -> None:
    windows, one = Windows(CONFIG), sequence(30)
    windows.add(one, windows.missing(one, 8))
    _, into = windows.enter_chunk(one, 30)
    assert len(set(into.tolist())) == 15  # a place of its own for each page: the pool has eight blocks
    hashes = [bytes([each]) * 16 for each in range(7)]
    assert windows.find(hashes)[0] == 0
    windows.publish(one, hashes)
    end, found = windows.find(hashes)
    assert (end, len(found)) == (7, 2)
    assert (found * 2).tolist() == into[10:14:2].tolist()
    assert windows.find(hashes[:3])[0] == 3
    # Another sequence takes all that is left: only what the first still has is found.
    windows.pool.allocate(5)
    assert [windows.find(hashes[:length])[0] for length in (3, 6, 7)] == [0, 0, 7]
    windows.free(one, 0)
    assert windows.pool.num_used == 5


def test_a_sequence_goes_back_only_to_where_its_window_is() -> None:
    windows, one = Windows(CONFIG), sequence(8)
    windows.add(one, 3)
    windows.enter_chunk(one, 8)
    one.prefilled = 8
    for length in range(8, 22):
        one.sampled = length - 7
        assert one.length == length
        windows.enter_step(one)
    one.sampled += 1
    assert one.window.numbers.tolist() == [3, 4, 5]
    # Before token 20 are 15 to 19, in blocks 3 and 4; before 16, 11 to 15.
    assert [windows.has(one, tokens) for tokens in (22, 20, 16, 8)] == [True, True, False, False]
