"""Options and chunks of a scoring call."""

import math

import pytest

from hiscore_client import (
    InvalidRequest,
)
from hiscore_client.score_call import ScoreOptions


def test_only_options_off_their_defaults_are_sent() -> None:
    assert ScoreOptions().parameters() == {}
    sent = ScoreOptions(apply_softmax=True, temperature=2, item_first=True).parameters()
    assert sent == {"apply_softmax": True, "temperature": 2.0, "item_first": True}
    # tritonclient sends an int as int64, which the server would have to guess about.
    assert type(sent["temperature"]) is float


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0, -1.0])
def test_a_temperature_that_json_or_the_server_cannot_take_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidRequest, match="'temperature'"):
        ScoreOptions(apply_softmax=True, temperature=temperature).parameters()
