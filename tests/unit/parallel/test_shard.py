"""`Shard`: shares are consecutive, equal up to one, and together everything."""

import pytest

from hiscore.parallel.shard import WHOLE, Shard


@pytest.mark.parametrize("size", [1, 7, 8, 500, 151_936])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_shares_are_everything_once_and_equal_up_to_one(size: int, ranks: int) -> None:
    shards = [Shard(rank, ranks) for rank in range(ranks)]
    assert [place for shard in shards for place in range(size)[shard.span(size)]] == list(range(size))
    counts = [shard.count(size) for shard in shards]
    assert max(counts) - min(counts) <= 1
    assert WHOLE.count(size) == size


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(32, 8, 4), (32, 8, 8), (32, 2, 4), (8, 1, 8)])
def test_heads_of_queries_find_their_keys_on_their_rank(heads: int, kv_heads: int, ranks: int) -> None:
    held = [0] * kv_heads
    for shard in (Shard(rank, ranks) for rank in range(ranks)):
        mine = range(kv_heads)[shard.kv_span(kv_heads)]
        group = shard.count(heads) // len(mine)
        for place, head in enumerate(range(heads)[shard.span(heads)]):
            assert mine[place // group] == head // (heads // kv_heads)
        for kv_head in mine:
            held[kv_head] += 1
    assert held == [Shard(0, ranks).copies(kv_heads)] * kv_heads
