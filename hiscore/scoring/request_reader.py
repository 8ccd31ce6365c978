"""Triton's requests to the scorer as the requests that are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiscore.edge.triton_io import parameters, request_id, required_tensor
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import one_row
from hiscore.scoring.requests.layout import unpack
from hiscore.scoring.requests.options import parse_options
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import check_labels, check_prompt
from hiscore.settings import CANARY_ID, Limits

INPUTS = ("input_ids", "delimiter_indices", "label_token_ids")


@dataclass(frozen=True)
class RequestReader:
    """Reads and validates requests, and copies all that they hold.

    `to_compute` turns a validated prompt into what is computed.
    """

    facts: CheckpointFacts
    limits: Limits
    to_compute: Callable[[MultiItemPrompt], MultiItemPrompt]

    def read(self, request: Any) -> ScoreRequest:
        """Read a request.

        Raises:
            RequestError: It cannot be computed; the message names the input or the parameter.
        """
        options = parse_options(parameters(request))
        ids, indices, labels = (one_row(name, required_tensor(request, name), np.int32) for name in INPUTS)
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.limits, self.facts)
        items = len(prompt.item_lengths)
        labels = check_labels(labels, self.limits, self.facts, options.label_counts, items).copy()
        return ScoreRequest.of(self.to_compute(prompt), labels, options, request_id(request) == CANARY_ID)
