"""Reads Triton's requests by token ids for the scorer, and those by text for the tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.edge.triton_io import parameters, request_id, required_tensor, strings, tensor
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import one_row
from hiscore.scoring.requests.layout import unpack
from hiscore.scoring.requests.options import ScoreOptions, parse_options
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import check_labels, check_prompt
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import CANARY_ID, Limits

INPUTS = ("input_ids", "delimiter_indices", "label_token_ids")


@dataclass(frozen=True)
class RequestReader:
    """Reads and validates requests by token ids, and copies all that they hold.

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
        # A caller who names no outputs is taken to have named all.
        asked = request.requested_output_names()
        as_row = "probabilities" in asked and "scores" not in asked
        if as_row:
            options = replace(options, apply_softmax=True, raw_logits=False)
        ids, indices, labels = (one_row(name, required_tensor(request, name), np.int32) for name in INPUTS)
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.limits, self.facts)
        items = len(prompt.item_lengths)
        if as_row and items != 1:
            raise RequestError(f"'probabilities' are of one item, not of {items}: ask for 'scores'")
        labels = check_labels(labels, self.limits, self.facts, options.label_counts, items).copy()
        is_canary = request_id(request) == CANARY_ID
        made = ScoreRequest.of(self.to_compute(prompt), labels, options, is_canary)
        return replace(made, as_row=True) if as_row else made


def read_text(request: Any, options: ScoreOptions) -> TextRequest:
    """Read a request in text; all that it holds is copied.

    Raises:
        RequestError: An input is missing, has another shape or dtype, or is not UTF-8.
    """
    text = _row(request, "text", np.object_)
    if text is None:
        query, items = (
            one_row(name, required_tensor(request, name), np.object_) for name in ("query", "items")
        )
    elif tensor(request, "query") is None and tensor(request, "items") is None:
        query, items = np.array([b""], np.object_), text
    else:
        raise RequestError("'text' was sent with 'query' or 'items': it stands for both")
    if len(query) != 1:
        raise RequestError(f"'query' must be one string, not {len(query)}")
    labels, label_ids = _row(request, "labels", np.object_), _row(request, "label_token_ids", np.int32)
    return TextRequest(
        query=strings(query, "query")[0],
        items=strings(items, "items"),
        labels=None if labels is None else strings(labels, "labels"),
        label_token_ids=None if label_ids is None else label_ids.copy(),
        label_counts=options.label_counts,
        item_first=options.item_first,
        text_bytes=sum(sum(map(len, texts)) for texts in (query, items, labels) if texts is not None),
    )


def _row(request: Any, name: str, dtype: npt.DTypeLike) -> Any:
    values = tensor(request, name)
    return None if values is None else one_row(name, values, dtype)
