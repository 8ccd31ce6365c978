"""Request parameters: their defaults, and messages that name field, value and bound."""

import json

import pytest

from hiscore.errors import RequestError
from hiscore.scoring.requests.options import LONGEST_KEPT, ScoreOptions, parse_options


def test_options_have_the_contracts_defaults() -> None:
    assert parse_options("") == parse_options("{}") == ScoreOptions(False, 1.0, False)
    given = {"apply_softmax": True, "temperature": 2, "item_first": True}
    assert parse_options(json.dumps(given)) == ScoreOptions(True, 2.0, True)
    assert parse_options('{"raw_logits": true}') == ScoreOptions(raw_logits=True)
    assert parse_options('{"temperature": 1.0}') == ScoreOptions()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ('{"aply_softmax": true}', "unknown parameter 'aply_softmax'"),
        ('{"apply_softmax": 1}', "'apply_softmax' must be true or false, not 1"),
        ('{"raw_logits": 1}', "'raw_logits' must be true or false, not 1"),
        (
            '{"raw_logits": true, "apply_softmax": true}',
            "'raw_logits' and 'apply_softmax' exclude each other",
        ),
        ('{"raw_logits": true, "temperature": 2}', "other values than 1.0 need apply_softmax"),
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
    assert len(error.value.message) < 300


@pytest.mark.parametrize("length", [LONGEST_KEPT, LONGEST_KEPT + 1])
def test_parameters_that_come_again_are_read_alike(length: int) -> None:
    good, bad = ('{"temperature": %s}'.ljust(length + 1) % value for value in ("1", "0"))
    assert parse_options(good) == parse_options(good) == ScoreOptions()
    for _ in range(2):
        with pytest.raises(RequestError, match="greater than 0"):
            parse_options(bad)
