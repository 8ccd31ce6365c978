"""For how many rows and how long contexts graphs are captured."""

import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.decoding.worker.cuda_graphs import REACHES, ROWS, buckets_up_to


def test_buckets_grow_to_the_largest_and_have_it() -> None:
    assert buckets_up_to(1, ROWS, 16) == [1]
    assert buckets_up_to(5, ROWS, 16) == [1, 2, 4, 5]
    assert buckets_up_to(48, ROWS, 16) == list(ROWS)
    assert buckets_up_to(64, ROWS, 16) == [*ROWS, 64]
    assert buckets_up_to(100, ROWS, 16) == [*ROWS, 64, 80, 96, 100]
    assert buckets_up_to(2_048, REACHES, 2**30) == [2_048]
    assert buckets_up_to(40_960, REACHES, 2**30) == [*REACHES, 40_960]
