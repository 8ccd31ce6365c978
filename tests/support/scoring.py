"""Scores from a scorer in this process."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hiscore.errors import RequestError
from hiscore.prefill.interface import ForwardRunner
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.strategies import Tokens

LABELS = [5, 77, 401]


def score(scorer: Scorer, calls: Sequence[Tokens], options: ScoreOptions) -> list[np.ndarray]:
    """Score prompts together, a causal LM's with `LABELS`; each must get scores, float32 [items, labels]."""
    labels = [] if scorer.facts.is_classifier else LABELS
    answers, _ = scorer.score(
        [ScoreRequest(call.prompt(), np.array(labels, np.int32), options) for call in calls]
    )
    assert not any(isinstance(answer, RequestError) for answer in answers)
    return [answer.scores for answer in answers]


def use_runner(scorer: Scorer, runner: ForwardRunner) -> None:
    """Let a scorer compute with another runner, on this rank alone."""
    computation = replace(scorer.computation, runner=runner)
    vars(scorer).update(vars(Scorer(computation, scorer.facts, scorer.packing)))
