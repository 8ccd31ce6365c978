"""The times at which calls are late, and how many are kept of calls that have ended."""

import math

import pytest

from hiscore.batching import request_order
from hiscore.decoding.engine.inbox import Deadlines
from tests.support.decode_worker import sequence_of


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("spare", [request_order.SPARE, math.inf])
def test_calls_that_have_ended_are_forgotten(
    spare: float, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all had their reply_to at the same address. The control keeps their times until they have come."""
    monkeypatch.setattr(request_order, "SPARE", spare)
    deadlines, live = Deadlines(), {}
    stays = sequence_of(1, "stays", deadline=50_000.0, start_by=1e9)
    live[id(stays.reply_to)] = stays
    deadlines.add(stays)
    names = ["always the same"] * 10_000 if same else [object() for _ in range(10_000)]
    for now, name in enumerate(names):
        call = live[id(name)] = sequence_of(1, name, deadline=1e6 + now, start_by=2e6 + now)
        deadlines.add(call)
        assert not list(deadlines.expired(now, live))
        del live[id(name)]
    assert (len(deadlines._heap) < 200) == (spare < math.inf)
    # What lives is late when it is.
    assert not list(deadlines.expired(49_999.0, live))
    assert [late for late, _ in deadlines.expired(50_000.0, live)] == [stays]
