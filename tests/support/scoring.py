"""Scores from a scorer in this process."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hiscore.errors import RequestError
from hiscore.prefill.interface import ForwardRunner
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.strategies import Tokens

LABELS = [5, 77, 401]
PLAIN, SOFTMAX = ScoreOptions(), ScoreOptions(apply_softmax=True)


def request(
    scorer: Scorer,
    call: Tokens | MultiItemPrompt,
    options: ScoreOptions = PLAIN,
    labels: Sequence[int] = LABELS,
) -> ScoreRequest:
    """A request as its reader makes it; a classifier's has no labels."""
    prompt = call.prompt() if isinstance(call, Tokens) else call
    ids = np.array([] if scorer.facts.is_classifier else labels, np.int32)
    return ScoreRequest(scorer.packing.prompt(prompt), ids, options)


def score(
    scorer: Scorer, calls: Sequence[Tokens | MultiItemPrompt], options: ScoreOptions = PLAIN
) -> list[np.ndarray]:
    """Score prompts together, a causal LM's with `LABELS`; each must get scores, float32 [items, labels]."""
    answers, _ = scorer.score([request(scorer, call, options) for call in calls])
    assert not any(isinstance(answer, RequestError) for answer in answers)
    return [answer.scores for answer in answers]


def use_runner(scorer: Scorer, runner: ForwardRunner) -> None:
    """Let a scorer compute with another runner, on this rank alone."""
    computation = replace(scorer.computation, runner=runner)
    vars(scorer).update(vars(Scorer(computation, scorer.facts, scorer.packing)))
