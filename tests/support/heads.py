"""What a head computes of hidden states on the CPU, at once."""

from collections.abc import Sequence

import numpy as np
import torch

from hiscore.device.copies import Uploads
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.head_results import HeadResult, head_results
from hiscore.scoring.results.readout_plan import ReadoutPlan


def nowhere() -> Uploads:
    return Uploads(torch.device("cpu"))


def results_of(head: LMHead, hidden: torch.Tensor, requests: Sequence[ScoreRequest]) -> list[HeadResult]:
    """Of hidden states in the order of the requests' items, for a causal LM."""
    plans = [ReadoutPlan.of(request, is_classifier=False) for request in requests]
    return head_results(head, plans, np.arange(len(hidden)), nowhere())(hidden)
