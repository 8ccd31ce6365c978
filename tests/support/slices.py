"""Large batches in slices, with small ones in between."""

from collections.abc import Generator, Sequence

import numpy as np
from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.batching.batched_model import LaunchedSlice
from hiscore.device.copies import PinnedArrays
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.pending_scores import PendingScores, Scores
from hiscore.scoring.scorer import Scorer
from tests.support.scoring import LABELS
from tests.support.strategies import Tokens


class SlicedTorchRunner(TorchRunner):
    """A forward of more than `between` rows is computed layer by layer, one at a time."""

    between = 96
    sliced = 0
    """Forwards that were."""
    _opened = False

    def in_slices(self, forward: Forward, arrays: PinnedArrays) -> Generator[None, None, Tensor]:
        if len(forward.input_ids) <= self.between:
            return (yield from super().in_slices(forward, arrays))
        assert not self._opened, "two large forwards are computed in turns"
        self._opened, self.sliced = True, self.sliced + 1
        try:
            return (yield from super().in_slices(forward, arrays))
        finally:
            self._opened = False

    def _spans(self, forward: Forward) -> Sequence[range]:
        layers = self._decoder.architecture.layers
        if len(forward.input_ids) <= self.between:
            return [range(layers)]
        return [range(layer, layer + 1) for layer in range(layers)]


def in_turns(
    scorer: Scorer, large: Sequence[Tokens], between: Sequence[Sequence[Tokens]]
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Scores of a large batch, float32 [items, labels] by call, and of those launched behind each slice of it."""
    waiting, pending = list(between), []
    for launched in scorer.in_slices(requests(large)):
        if isinstance(launched, LaunchedSlice):
            pending.append(scorer.submit(requests(waiting.pop(0))))
    assert not waiting
    assert isinstance(launched, PendingScores)
    return scores(launched), [scores(each) for each in pending]


def requests(calls: Sequence[Tokens]) -> list[ScoreRequest]:
    """With softmax over the labels."""
    labels, options = np.array(LABELS, np.int32), ScoreOptions(apply_softmax=True)
    return [ScoreRequest(call.prompt(), labels, options) for call in calls]


def scores(pending: PendingScores) -> list[np.ndarray]:
    """By call; of one that failed, NaN."""
    answers, _ = pending.result()
    nothing = np.full((1, len(LABELS)), np.nan, np.float32)
    return [answer.scores if isinstance(answer, Scores) else nothing for answer in answers]
