"""The wire layout: `lay_out` and `unpack` undo each other, and the ids of delimiters do not matter."""

import numpy as np
from hypothesis import given

from hiscore.scoring.requests.layout import lay_out, unpack
from hiscore.scoring.requests.request import MultiItemPrompt
from tests.support.strategies import Tokens, tokens


@given(tokens(vocabulary=100))
def test_unpack_undoes_lay_out(call: Tokens) -> None:
    prompt = call.prompt()
    assert prompt.tokens.tolist() == [*call.query, *(i for item in call.items for i in item)]
    input_ids, delimiters = lay_out(prompt)
    assert (input_ids.dtype, delimiters.dtype) == (np.int32, np.int32)
    assert len(input_ids) == len(prompt.tokens) + len(call.items) + 1
    again = unpack(input_ids, delimiters)
    assert again.tokens.tolist() == prompt.tokens.tolist()
    assert (again.query_length, again.item_lengths.tolist()) == (
        prompt.query_length,
        prompt.item_lengths.tolist(),
    )


def test_the_wire_layout_of_a_prompt() -> None:
    ids, delimiters = lay_out(MultiItemPrompt.of([1, 2], [[3], [], [4, 5]]))
    assert ids.tolist() == [1, 2, 0, 3, 0, 0, 4, 5, 0]
    assert delimiters.tolist() == [2, 4, 5, 8]
    call = unpack(ids, delimiters)
    assert call.tokens.tolist() == [1, 2, 3, 4, 5]
    assert (call.query_length, call.item_lengths.tolist()) == (2, [1, 0, 2])


def test_a_delimiters_own_id_is_never_looked_at() -> None:
    ids, delimiters = lay_out(MultiItemPrompt.of([1, 2], [[3]]))
    ids[delimiters] = [-7, 2**31 - 1]
    assert unpack(ids, delimiters).tokens.tolist() == [1, 2, 3]
