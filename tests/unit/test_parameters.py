import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.parameters import check_ids, one_row


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros(3, np.int32), "must have shape [1, n], not [3]"),
        (np.zeros((2, 3), np.int32), "has 2 rows"),
        (np.zeros((1, 3), np.int64), "must be int32, not int64"),
    ],
)
def test_one_row_of_the_right_kind(values: np.ndarray, says: str) -> None:
    with pytest.raises(RequestError) as error:
        one_row("input_ids", values, np.int32)
    assert says in error.value.message


def test_one_row_is_a_view_of_the_tensor() -> None:
    values = np.array([[1, 2, 3]], np.int32)
    assert one_row("input_ids", values, np.int32).base is values


@pytest.mark.parametrize("ids", [[0], [99], []])
def test_ids_of_the_vocabulary_are_accepted(ids: list[int]) -> None:
    check_ids("input_ids", np.array(ids, np.int32), 100)


@pytest.mark.parametrize(("ids", "named"), [([5, -1, 100], -1), ([0, 100], 100), ([-(2**31)], -(2**31))])
def test_the_first_id_beyond_the_vocabulary_is_named(ids: list[int], named: int) -> None:
    with pytest.raises(RequestError, match=f"'input_ids' holds {named}: ids of this model are 0 to 99"):
        check_ids("input_ids", np.array(ids, np.int32), 100)
