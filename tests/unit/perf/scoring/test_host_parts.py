"""Every part of the host's work is found, and nothing stays changed."""

from collections import defaultdict

from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.scoring import host_parts


def test_a_batch_is_timed_by_part(scorer: Scorer, calls: list[ScoreRequest]) -> None:
    before = functions()
    seconds: defaultdict[str, float] = defaultdict(float)
    with host_parts.timed(seconds):
        answers = BatchedScorer(scorer, lambda stats: None).launch(calls).finish()
    assert len(answers) == len(calls)
    assert seconds.keys() == host_parts.PARTS.keys()
    assert min(seconds.values()) > 0
    assert functions() == before


def functions() -> list[object]:
    return [getattr(*place) for places in host_parts.PARTS.values() for place in places]
