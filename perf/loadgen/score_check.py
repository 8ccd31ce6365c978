"""Checks that scores are right: all items in one call against each item in its own call."""

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
    """The outcome of `check_scores`."""

    scores: int
    """Number of scores compared."""
    difference: float
    """Largest difference of a score from that of the item's own call."""
    control: float
    """Largest difference from the neighbouring item's score."""
    tolerance: float


def scores_of(client: ScoreClient, call: Ids) -> Float32:
    """Send one call: scores, float32 [items, labels]."""
    return client.score_ids(call.query, call.items, call.labels, apply_softmax=True).scores


def check_scores(url: str, calls: Sequence[Ids], tolerance: float) -> Check:
    """Score each call at once and item by item, and compare.

    Raises:
        WrongScores: A score differs by more than the tolerance, or the items score so alike that the comparison
            could not have failed.
    """
    with ScoreClient(url) as client:
        once = np.stack([scores_of(client, call) for call in calls])
        alone = np.stack(
            [
                np.concatenate(
                    [scores_of(client, Ids(call.query, [item], call.labels)) for item in call.items]
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
    check_contrast(check.control, tolerance)
    return check


def check_contrast(control: float, tolerance: float) -> None:
    """Refuse a comparison that could not have failed.

    Args:
        control: Largest difference between scores that ought to differ.
        tolerance: Difference allowed between scores that ought to be equal.

    Raises:
        WrongScores: The control is below four tolerances.
    """
    if control < 4 * tolerance:
        raise WrongScores(f"items differ by {control:.2g} only: the check could not see a mistake")


def check_control(samples: Sequence[Sample], tolerance: float) -> None:
    """Check that different calls score differently; otherwise mixed-up answers would not show.

    Raises:
        WrongScores: They differ by less than four tolerances.
    """
    scores = {sample.message: sample.scores for sample in samples if sample.scores is not None}
    stacked = np.stack(list(scores.values()))
    if len(stacked) < 2 or np.abs(stacked[1:] - stacked[:-1]).max() < 4 * tolerance:
        raise WrongScores("the calls' scores hardly differ: the comparison could not see a mistake")
