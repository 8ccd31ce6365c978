from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore_client import InvalidRequest
from hiscore_client.tensors import TokenIds, as_id_array, encode_text, encode_texts, lay_out

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=6)


def as_given(ids: list[int], kind: str) -> TokenIds:
    return ids if kind == "list" else np.array(ids, np.int64)


@pytest.mark.parametrize("kind", ["list", "array"])
@given(query=token_lists, items=st.lists(token_lists, max_size=8), data=st.data())
def test_layout_can_be_taken_apart_again(
    kind: str, query: list[int], items: list[list[int]], data: st.DataObject
) -> None:
    whole = lay_out(as_given(query, kind), [as_given(item, kind) for item in items])
    assert whole.sizes == [len(item) + 1 for item in items]
    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    for layout, expected in ((whole, items), (whole.part(slice(start, stop)), items[start:stop])):
        ids, delimiters = layout.ids, layout.delimiters
        assert ids.dtype == delimiters.dtype == np.int32
        assert delimiters[0] == len(query)
        assert delimiters[-1] == len(ids) - 1
        assert ids[: delimiters[0]].tolist() == query
        assert [ids[begin + 1 : end].tolist() for begin, end in pairwise(delimiters)] == expected


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2**31], "largest int32"),
        ([-(2**31) - 1], "int32"),
        ([1.5], "flat list"),
        ([[1]], "flat list"),
        ([[1], [2, 3]], "flat list"),
        ([True], "flat list"),
        (["1"], "flat list"),
        (7, "flat list"),
        ([2**70], "flat list"),
    ],
)
def test_what_is_no_list_of_ids_is_refused_by_name(ids: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        as_id_array("'query_ids'", ids)  # type: ignore[arg-type]
    assert "'query_ids'" in str(caught.value)


def test_ids_may_be_empty_or_any_integer_array() -> None:
    assert as_id_array("ids", []).tolist() == []
    assert as_id_array("ids", np.array([1, 2], dtype=np.uint64)).tolist() == [1, 2]


def test_text_that_utf8_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"'items' at place 1 is not valid Unicode: .* at character 2"):
        encode_texts("items", ["fine", "ab\udc80"])
    with pytest.raises(InvalidRequest, match="must be a list of strings, not one string"):
        encode_texts("items", "apple")
    with pytest.raises(InvalidRequest, match="'query' must be a string, not bytes"):
        encode_text("'query'", b"apple")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["text", [1.5], [[1], 2], [2**31], [None], 7, [True], np.array([0.5])])
def test_the_place_of_a_wrong_list_is_named(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="'item_ids' at place 1"):
        lay_out([5], [[1, 2], wrong, [3]])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="'query_ids'"):
        lay_out(wrong, [[1, 2]])  # type: ignore[arg-type]


def test_numpys_integers_and_true_among_others_are_ids() -> None:
    assert lay_out([np.int64(7), 8], [[3, True]]).ids.tolist() == [7, 8, 0, 3, 1, 0]
