"""The function from a request's results to its scores, prepared while a GPU is at work on them."""

from collections.abc import Callable
from functools import partial

from hiscore.arrays import Float32
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.head_results import has_own_labels, own_counts
from hiscore.scoring.results.readout import PairScores, scores_from_head

ScoreReader = Callable[[Float32], Float32]


def reader_of(request: ScoreRequest, is_classifier: bool) -> ScoreReader:
    """Prepare the function from a request's results to its scores, float32 [items, labels].

    Raises:
        RequestError: An item has a label twice among its own; from the function, a number is not finite.
    """
    if is_classifier or not has_own_labels(request):
        return partial(scores_from_head, options=request.options, is_classifier=is_classifier)
    columns = len(request.labels)
    if request.label_counts is not None:
        check_repeated(request.labels, request.label_counts, request.first_item)
        columns = request.columns
    return PairScores(own_counts(request), columns, request.options).of
