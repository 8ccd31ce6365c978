"""The wire layout: `lay_out` and `unpack` undo each other, and the ids of delimiters do not matter."""

import numpy as np
from hypothesis import given

from hiscore.scoring.requests.layout import lay_out, unpack
from tests.support.strategies import Tokens, tokens


@given(tokens(vocabulary=100))
def test_unpack_undoes_lay_out(call: Tokens) -> None:
    prompt = call.prompt()
    assert prompt.tokens.tolist() == [*call.query, *(i for item in call.items for i in item)]
    input_ids, delimiters = lay_out(prompt)
    assert (input_ids.dtype, delimiters.dtype) == (np.int32, np.int32)
    assert len(input_ids) == len(prompt.tokens) + len(call.items) + 1
    input_ids[delimiters] = np.resize([-7, 2**31 - 1], len(delimiters))  # never looked at
    again = unpack(input_ids, delimiters)
    assert again.tokens.tolist() == prompt.tokens.tolist()
    assert (again.query_length, again.item_lengths.tolist()) == (
        prompt.query_length,
        prompt.item_lengths.tolist(),
    )
