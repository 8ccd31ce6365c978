"""The computation of a batch's results, on the scorer's device or on each of its ranks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.attention.metadata import Forward
from hiscore.device.copies import Uploads
from hiscore.layers.lm_head import LMHead
from hiscore.parallel.rank import Rank
from hiscore.prefill.interface import ForwardRunner
from hiscore.scoring.results.head_results import HeadResult, head_results
from hiscore.scoring.results.readout_plan import ReadoutPlan

log = logging.getLogger(__name__)
PLACE = "scorer"
"""The place where a rank holds its `Computation`."""


@dataclass(frozen=True)
class Computation:
    """Computes batches on one device; `head` is the checkpoint's LM head or a classifier's.

    `heads` joins the heads of all adapters; None: no adapter has one.
    """

    runner: ForwardRunner
    head: LMHead
    device: torch.device
    heads: LMHead | None = None

    def compute(self, forwards: Sequence[Forward], plans: Sequence[ReadoutPlan]) -> list[HeadResult]:
        """The results of the head for a batch; on CUDA this only launches the work."""
        return self.read_out(self.runner.forward(forwards), forwards, plans)

    def read_out(
        self, hidden: Tensor, forwards: Sequence[Forward], plans: Sequence[ReadoutPlan]
    ) -> list[HeadResult]:
        """Apply the head. Its inputs are worked out only now: a GPU is still at work on the hidden states."""
        places, uploads = _places(forwards), Uploads(self.device)
        return head_results(self.head, plans, places, uploads, self.heads)(hidden)


@torch.inference_mode()
def compute(rank: Rank, forwards: Sequence[Forward], plans: Sequence[ReadoutPlan]) -> list[HeadResult]:
    return computation(rank).compute(forwards, plans)


def computation(rank: Rank) -> Computation:
    found: Computation = rank.held[PLACE]
    return found


def _places(forwards: Sequence[Forward]) -> Int64:
    """Find the row of each item of a batch among the rows that its forwards read: int64 [R]."""
    items = np.concatenate([np.empty(0, np.int64), *(forward.scored_items for forward in forwards)])
    return np.argsort(items)
