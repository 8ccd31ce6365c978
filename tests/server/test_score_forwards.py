"""What a call costs: forwards, tokens and time, by the server's own counters."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.counters import counted, processor_seconds
from tests.server.wire import Answer, score_tokens
from tests.support.comparison import INVARIANCE
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
FORWARDS = "scorer", "hiscore_forwards_total"
TOKENS = "scorer", "hiscore_batch_tokens_total"
ITEMS = "scorer", "hiscore_items_total"
CACHED = "scorer", "hiscore_cached_tokens_total"
BATCHES = "scorer", "hiscore_batches_total"
COUNT = "scorer", "nv_inference_count"
ATTEMPTS = 20


def fresh(query: int, items: list[int]) -> Tokens:
    """Ids that no call had before, so that no cache can help."""
    return random_tokens(np.random.default_rng(), query, items, VOCABULARY)


def computed(answers: list[Answer]) -> int:
    return sum(answer.prompt_tokens - answer.cached_tokens for answer in answers)


def no_decode(risen: dict[tuple[str, str], int]) -> bool:
    return not any(amount for (_, name), amount in risen.items() if name.startswith("hiscore_decode"))


def test_a_call_within_the_budget_is_one_forward(start_server: StartServer, tiny_llama: Path) -> None:
    """On a server that expects no small calls, since it has had none."""
    server = start_server(tiny_llama, query_cache_bytes=2**24)
    with counted(server, {ITEMS: 400}) as risen:
        answer = score_tokens(server, fresh(1_200, [2] * 400), LABELS)
    assert answer.prompt_tokens == 2_000
    assert risen[FORWARDS] == risen[BATCHES] == 1
    assert risen[TOKENS] == 2_000
    assert risen[ITEMS] == 400
    assert risen[CACHED] == answer.cached_tokens == 0
    assert no_decode(risen)


def test_a_batch_of_calls_is_one_forward(lm: Server) -> None:
    """However they gather into batches: as many forwards as batches, and fewer than calls."""
    calls = [fresh(100, [3, 9, 1, 0, 20])] + [fresh(50, [5] * 10) for _ in range(15)]
    for _ in range(ATTEMPTS):
        with counted(lm, {COUNT: 17, ITEMS: 205}) as risen, ThreadPoolExecutor(16) as pool:
            # A long one first, behind which the others gather, unless this machine does something else just then.
            # If it is divided, no part computes its query again: that is full pages.
            first = pool.submit(score_tokens, lm, fresh(992, [20] * 50), LABELS)
            answers = [*pool.map(lambda call: score_tokens(lm, call, LABELS), calls), first.result()]
            calls = [fresh(100, [3, 9, 1, 0, 20])] + [fresh(50, [5] * 10) for _ in range(15)]
        assert risen[COUNT] == 17
        assert risen[FORWARDS] == risen[BATCHES]
        assert risen[TOKENS] == computed(answers) == 992 + 1_000 + 133 + 15 * 100
        assert no_decode(risen)
        if risen[FORWARDS] < 17:
            return
    raise AssertionError("each call was a batch of its own")


def test_beyond_the_budget_a_call_is_split_and_its_query_computed_once(
    start_server: StartServer, tiny_llama: Path
) -> None:
    server = start_server(tiny_llama, models="scorer", max_batch_tokens=256, query_cache_bytes=0)
    with counted(server, {ITEMS: 100}) as risen:
        score_tokens(server, fresh(500, [10] * 100), LABELS)
    # Items are not cut where they fit, so that a forward may be less than full.
    assert 1_500 / 256 <= risen[FORWARDS] <= 1_500 / 246 + 2
    assert risen[TOKENS] == 1_500
    assert risen[BATCHES] == 1


def test_four_hundred_items_cost_less_than_ten_times_one(lm: Server) -> None:
    """In processor time, summed over several calls in turn; the queries are new each time."""

    def seconds(items: int) -> float:
        call = fresh(2_000, [2] * items)
        begin = processor_seconds(lm)
        score_tokens(lm, call, LABELS)
        return processor_seconds(lm) - begin

    seconds(400)
    together, alone = map(sum, zip(*[(seconds(400), seconds(1)) for _ in range(10)], strict=True))
    assert together < 10 * alone
    # Control: twenty calls of one item each, let alone 400, cannot pass.
    assert sum(seconds(1) for _ in range(20)) > alone


def test_a_repeated_query_is_served_from_the_cache(lm: Server) -> None:
    call = fresh(300, [4, 9, 1, 0, 30])
    first = score_tokens(lm, call, LABELS, apply_softmax=True)
    with counted(lm, {CACHED: 1}) as risen:
        again = score_tokens(lm, call, LABELS, apply_softmax=True)
    assert first.cached_tokens == 0
    assert 0 < again.cached_tokens <= 300
    assert risen[CACHED] == again.cached_tokens
    assert risen[TOKENS] == again.prompt_tokens - again.cached_tokens
    assert again.prompt_tokens == first.prompt_tokens == 344
    np.testing.assert_allclose(again.scores, first.scores, atol=INVARIANCE, rtol=0)
    # Control: one other id in the query is another query.
    other = Tokens([(call.query[0] + 1) % VOCABULARY, *call.query[1:]], call.items)
    changed = score_tokens(lm, other, LABELS, apply_softmax=True)
    assert changed.cached_tokens == 0
    assert np.abs(changed.scores - first.scores).max() > INVARIANCE
