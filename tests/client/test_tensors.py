"""Converting arguments to tensors."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore_client import InvalidRequest
from hiscore_client.tensors import as_id_array, as_id_arrays, encode_text, encode_texts, insert_delimiters

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@given(query=token_lists, items=st.lists(token_lists, max_size=8))
def test_layout_can_be_taken_apart_again(query: list[int], items: list[list[int]]) -> None:
    input_ids, delimiters = insert_delimiters(
        as_id_array("query", query), [as_id_array("item", item) for item in items]
    )
    assert input_ids.dtype == delimiters.dtype == np.int32
    assert delimiters[0] == len(query)
    assert delimiters[-1] == len(input_ids) - 1
    assert input_ids[: delimiters[0]].tolist() == query
    assert [input_ids[start + 1 : end].tolist() for start, end in pairwise(delimiters)] == items


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


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5))
def test_lists_are_converted_at_once_as_one_by_one(lists: list[list[int]]) -> None:
    found = as_id_arrays("'items'", lists)
    assert [each.tolist() for each in found] == lists
    assert {each.dtype for each in found} <= {np.dtype(np.int32)}


@pytest.mark.parametrize("wrong", ["text", [1.5], [[1], 2], [2**31], [None], 7, [True]])
def test_the_place_of_a_wrong_list_is_named(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="'items' at place 1"):
        as_id_arrays("'items'", [[1, 2], wrong, [3]])  # type: ignore[list-item]
