"""Every bad call in token space is refused with a message that names field, value and bound."""

import json

import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import one_row
from hiscore.scoring.layout import lay_out, unpack
from hiscore.scoring.options import ScoreOptions, parse_options
from hiscore.scoring.request import MultiItemPrompt
from hiscore.scoring.validation import check_labels, check_prompt
from hiscore.settings import Limits

FACTS = CheckpointFacts(vocab_size=100, context_length=8, is_classifier=False)
CLASSIFIER = CheckpointFacts(vocab_size=100, context_length=8, is_classifier=True)
LIMITS = Limits(max_items=3, max_labels=4, max_call_tokens=20)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def checked(ids: np.ndarray, delimiters: np.ndarray) -> MultiItemPrompt:
    """As the scorer reads a request."""
    prompt = unpack(ids, delimiters)
    check_prompt(prompt, LIMITS, FACTS)
    return prompt


def test_layout_and_unpack_are_inverse() -> None:
    ids, delimiters = lay_out(MultiItemPrompt.of([1, 2], [[3], [], [4, 5]]))
    assert delimiters.tolist() == [2, 4, 5, 8]
    call = unpack(ids, delimiters)
    assert call.tokens.tolist() == [1, 2, 3, 4, 5]
    assert (call.query_length, call.item_lengths.tolist()) == (2, [1, 0, 2])


def test_a_delimiters_own_id_is_never_looked_at() -> None:
    ids, delimiters = lay_out(MultiItemPrompt.of([1, 2], [[3]]))
    ids[delimiters] = [-7, 2**31 - 1]
    assert checked(ids, delimiters).tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("ids", "delimiters", "says"),
    [
        (int32(1, 2), int32(), "'delimiter_indices' is empty"),
        (int32(1, 0, 2, 0), int32(3, 1), "must ascend strictly: 3 is followed by 1"),
        (int32(1, 0, 2, 0), int32(1, 1, 3), "must ascend strictly: 1 is followed by 1"),
        (int32(1, 0, 2, 0), int32(1, 4), "holds 4: out of range for 'input_ids' of length 4"),
        (int32(1, 0, 2, 0), int32(-1, 3), "holds -1: out of range"),
        (int32(1, 0, 2, 0), int32(1, 2), "must end the sequence: the last is 2, 'input_ids' ends at 3"),
        (int32(), int32(0), "out of range for 'input_ids' of length 0"),
        (int32(100, 0, 2, 0), int32(1, 3), "'input_ids' holds 100: ids of this model are 0 to 99"),
        (int32(1, 0, -1, 0), int32(1, 3), "'input_ids' holds -1"),
        (
            int32(*[1] * 5, 0, *[1] * 4, 0),
            int32(5, 10),
            "have 9 tokens together: the model's context holds 8",
        ),
        (int32(0, 1, 0, 0), int32(0, 2, 3), "the query and item 1 are both empty"),
        (int32(1, 0, 0, 0, 0, 0), int32(1, 2, 3, 4, 5), "lays out 4 items: at most 3"),
        (int32(*([1] * 6 + [0]) * 4), int32(6, 13, 20, 27), "holds 24 tokens: at most 20"),
    ],
)
def test_a_bad_layout_is_refused(ids: np.ndarray, delimiters: np.ndarray, says: str) -> None:
    with pytest.raises(RequestError) as error:
        checked(ids, delimiters)
    assert says in error.value.message


def test_what_only_just_fits_is_accepted() -> None:
    check_prompt(MultiItemPrompt.of([1] * 5, [[99] * 3, [0] * 3]), LIMITS, FACTS)
    check_prompt(MultiItemPrompt.of([], []), LIMITS, FACTS)


@pytest.mark.parametrize(
    ("labels", "facts", "says"),
    [
        (int32(), FACTS, "needs at least one label"),
        (int32(5, 100), FACTS, "holds 100"),
        (int32(5, -3), FACTS, "holds -3"),
        (int32(5, 6, 5), FACTS, "holds 5 more than once"),
        (int32(1, 2, 3, 4, 5), FACTS, "holds 5 labels: at most 4"),
        (int32(5), CLASSIFIER, "must be empty: this model is a classifier"),
    ],
)
def test_bad_labels_are_refused(labels: np.ndarray, facts: CheckpointFacts, says: str) -> None:
    with pytest.raises(RequestError) as error:
        check_labels(labels, LIMITS, facts)
    assert says in error.value.message


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


def test_options_have_the_contracts_defaults() -> None:
    assert parse_options("") == parse_options("{}") == ScoreOptions(False, 1.0, False)
    given = {"apply_softmax": True, "temperature": 2, "item_first": True}
    assert parse_options(json.dumps(given)) == ScoreOptions(True, 2.0, True)
    assert parse_options('{"temperature": 1.0}') == ScoreOptions()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ('{"aply_softmax": true}', "unknown parameter 'aply_softmax'"),
        ('{"apply_softmax": 1}', "'apply_softmax' must be true or false, not 1"),
        ('{"item_first": "yes"}', "'item_first' must be true or false, not 'yes'"),
        ('{"apply_softmax": true, "temperature": NaN}', "'temperature' must be finite, not nan"),
        ('{"apply_softmax": true, "temperature": Infinity}', "'temperature' must be finite, not inf"),
        ('{"apply_softmax": true, "temperature": 0}', "'temperature' must be greater than 0, not 0.0"),
        ('{"apply_softmax": true, "temperature": -1.5}', "'temperature' must be greater than 0, not -1.5"),
        ('{"apply_softmax": true, "temperature": true}', "must be a number, not True"),
        ('{"apply_softmax": true, "temperature": "1"}', "must be a number, not '1'"),
        (f'{{"apply_softmax": true, "temperature": 1{"0" * 400}}}', "'temperature' must be finite, not 1000"),
        (f'{{"apply_softmax": "{"x" * 9000}"}}', "'apply_softmax' must be true or false, not 'xxx"),
        (f'{{"{"x" * 9000}": 1}}', f"unknown parameter '{'x' * 64}': known are apply_softmax, temperature"),
        ('{"temperature": 0.5}', "'temperature' is 0.5: other values than 1.0 need apply_softmax"),
    ],
)
def test_bad_options_are_refused(parameters: str, says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_options(parameters)
    assert says in error.value.message
    assert len(error.value.message) < 200
