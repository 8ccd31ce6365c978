"""Sizes of the cache that fit together and that do not, and the shapes that follow from them."""

from dataclasses import replace

import pytest
import torch

from hiscore.decoding.kv_cache.shape import MAX_SELECTABLE_PAGES, IndexKind, newest_selected
from hiscore.parallel.shard import Shard
from tests.support.decode_kernels import SHAPE as SHAPE_OF_KERNELS

SHAPE = replace(SHAPE_OF_KERNELS, layers=4, kv_heads=3, head_dim=8, sharing_layers=frozenset({2}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("host_pages", 2**29, r"host_pages is 536870912 with 4 tokens each"),
        ("device_pages", 2**29, r"device_pages is 536870912 with 4 tokens each"),
        ("max_pages", 2**21, "max_pages is 2097152, must be at most 2097151"),
        ("lru_pages", 2**21, "lru_pages is 2097152, must be at most 2097151"),
    ],
)
def test_more_pages_than_kernels_can_count_are_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sizes",
    [
        {"top_pages": 7},  # as many as the LRU pages
        {"top_pages": 3},  # the ring's and the first
        {"top_pages": 1, "index_kind": "dsa", "page_size": 1},
        {"host_pages": 2**29 - 1},  # 2^31 - 4 slots
        {"max_pages": MAX_SELECTABLE_PAGES, "lru_pages": MAX_SELECTABLE_PAGES},
        {"max_pages": 2**21, "dense_layers": frozenset(range(4)), "index_kind": "none", "device_pages": 0},
    ],
)
def test_sizes_just_within_the_bounds_are_taken(sizes: dict[str, object]) -> None:
    shape = replace(SHAPE, **sizes)  # type: ignore[arg-type]
    assert all(getattr(shape, name) == value for name, value in sizes.items())


def test_layers_are_dense_or_sparse_and_some_share_a_selection() -> None:
    assert SHAPE.sparse_layers == (0, 2, 3)
    assert SHAPE.indexed_layers == (0, 3)
    assert SHAPE.buffer_pages == 9


@pytest.mark.parametrize(
    ("kind", "page_size", "shape"), [("bounds", 4, (2, 80, 3, 2, 8)), ("dsa", 1, (2, 80, 5))]
)
def test_an_index_has_its_indexed_layers(kind: IndexKind, page_size: int, shape: tuple[int, ...]) -> None:
    sizes = replace(SHAPE, index_kind=kind, page_size=page_size, index_dim=5).tensors(torch.float32)
    assert sizes["index"] == (shape, torch.float32)


def test_tensors_have_the_shapes_that_their_sizes_say() -> None:
    sizes = {name: size for name, (size, _) in SHAPE.tensors(torch.bfloat16).items()}
    assert sizes["host_kv"] == (4, 80, 3, 2, 4, 8)
    assert sizes["exchange"] == (0, 2, 4, 8)
    assert sizes["dense_kv"] == (1, 320, 2, 3, 8)
    assert sizes["buffer"] == (3, 192, 2, 3, 8)
    assert sizes["host_block_table"] == sizes["device_block_table"] == (6, 24)
    assert sizes["device_page_of"] == (3, 80, 3)
    assert sizes["host_page_of"] == sizes["last_use"] == (3, 48, 3)
    # A buffer longer than the longest sequence still has an entry for each of its pages.
    assert replace(SHAPE, max_pages=4).tensors(torch.bfloat16)["device_block_table"][0] == (6, 9)
    assert SHAPE.bytes(torch.bfloat16)["buffer"] == 3 * 192 * 2 * 3 * 8 * 2


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_share_the_host_pool_and_nothing_else(ranks: int) -> None:
    each = [replace(SHAPE, host_share=Shard(rank, ranks)).tensors(torch.bfloat16) for rank in range(ranks)]
    assert sum(sizes["host_kv"][0][1] for sizes in each) == SHAPE.host_pages
    # Room for all that a step of 6 rows with 3 heads selects.
    assert {sizes["exchange"][0] for sizes in each} == {(6 * 3 * 5, 2, 4, 8)}
    alone = SHAPE.tensors(torch.bfloat16)
    for sizes in each:
        assert {name for name in alone if sizes[name] != alone[name]} == {"host_kv", "exchange"}
    # A rank without a page has one nevertheless: an index needs something to point at.
    assert replace(SHAPE, host_pages=1, host_share=Shard(1, ranks)).stored_pages == 1


WINDOWED = replace(
    SHAPE, windowed=frozenset({1}), window_pages=9, window_ring=3, prefill_rows=128,
    dense_layers=frozenset({0, 1}), prompts_in="buffers",
)  # fmt: skip


def test_windowed_layers_have_pages_of_their_own_and_room_for_a_prefill() -> None:
    sizes = {name: size for name, (size, _) in WINDOWED.tensors(torch.float32).items()}
    assert sizes["window_kv"] == (1, 9 * 4 + 128, 2, 3, 8)
    assert sizes["window_block_table"] == sizes["host_block_table"]
    # Of the others, the host has all, and the dense ones are the first.
    assert WINDOWED.host_layers == (0, 2, 3)
    assert [sizes[name][0] for name in ("host_kv", "dense_kv", "buffer")] == [3, 1, 3]
    without = SHAPE.tensors(torch.float32)
    assert without["window_kv"][0][:2] == (0, 0)
    assert without["window_block_table"][0][0] == 0


def test_more_slots_of_windows_than_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="window_pages is 536870912: slots must fit int32"):
        replace(WINDOWED, window_pages=2**29)


def test_what_every_selection_contains() -> None:
    kinds: list[IndexKind] = ["none", "bounds", "dsa"]
    assert [newest_selected(kind, 3) for kind in kinds] == [0, 3, 0]
    assert SHAPE.newest_selected == 2
