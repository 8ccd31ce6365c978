"""Are the scores right? All items at once against each item alone, through the same server."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Float32
from hiscore_client import ScoreClient
from perf.loadgen.generator import Sample
from perf.loadgen.scorer_calls import Ids
from perf.loadgen.window import WrongScores


@dataclass(frozen=True)
class Check:
    """difference: largest of a score from the item's own call; control: the same against the next item's."""

    scores: int
    difference: float
    control: float
    tolerance: float


def together(client: ScoreClient, call: Ids) -> Float32:
    """Scores of one call, float32 [items, labels]."""
    return client.score_ids(call.query, call.items, call.labels, apply_softmax=True).scores


def check_scores(url: str, calls: Sequence[Ids], tolerance: float) -> Check:
    """Compare; the control must be beyond the tolerance, or the comparison could not have failed.

    Raises:
        WrongScores: a score is off, or the control is not.
    """
    with ScoreClient(url) as client:
        once = np.stack([together(client, call) for call in calls])
        alone = np.stack(
            [
                np.concatenate(
                    [together(client, Ids(call.query, [item], call.labels)) for item in call.items]
                )
                for call in calls
            ]
        )
    check = Check(
        scores=once.size,
        difference=float(np.abs(once - alone).max()),
        control=float(np.abs(once - np.roll(alone, 1, axis=1)).max()),
        tolerance=tolerance,
    )
    if check.difference > tolerance:
        raise WrongScores(f"a score differs by {check.difference:.2g} from the item's own call")
    if check.control < 4 * tolerance:
        raise WrongScores(f"items differ by {check.control:.2g} only: the check could not see a mistake")
    return check


def check_control(samples: Sequence[Sample], tolerance: float) -> None:
    """Different calls must differ by far more than the tolerance, or a mix-up would not show.

    Raises:
        WrongScores: they do not.
    """
    scores = {sample.message: sample.scores for sample in samples if sample.scores is not None}
    found = np.stack(list(scores.values()))
    if len(found) < 2 or np.abs(found[1:] - found[:-1]).max() < 4 * tolerance:
        raise WrongScores("the calls' scores hardly differ: the comparison could not see a mistake")
