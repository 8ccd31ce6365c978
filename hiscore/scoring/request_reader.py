"""Triton's requests to the scorer, by token ids or by text, as the requests that are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import one_row
from hiscore.scoring.encoding_plan import EncodingPlan
from hiscore.scoring.layout import unpack
from hiscore.scoring.options import ScoreOptions, parse_options
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.text_inputs import has_text, read_text
from hiscore.scoring.text_reader import LARGE_BYTES, TextReader
from hiscore.scoring.validation import check_labels, check_prompt
from hiscore.serving.triton_io import LongRead, parameters, request_id, required_tensor, tensor
from hiscore.settings import CANARY_ID, Limits


@dataclass(frozen=True)
class RequestReader:
    """Reads and validates requests; all that they hold is copied.

    Attributes:
        facts: Sizes to validate against.
        limits: Bounds of one call.
        to_compute: Turns a validated prompt into what is computed.
        texts: None where token ids alone are taken.
    """

    facts: CheckpointFacts
    limits: Limits
    to_compute: Callable[[MultiItemPrompt], MultiItemPrompt]
    texts: TextReader | None

    def read(self, request: Any) -> ScoreRequest | LongRead[ScoreRequest]:
        """Read a request; one with a large text is finished later.

        Raises:
            RequestError: It cannot be served.
        """
        options = parse_options(parameters(request))
        if has_text(request):
            return self._read_text(request, options)
        ids, indices, labels = (
            one_row(name, required_tensor(request, name), np.int32)
            for name in ("input_ids", "delimiter_indices", "label_token_ids")
        )
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.limits, self.facts)
        items = len(prompt.item_lengths)
        labels = check_labels(labels, self.limits, self.facts, options.label_counts, items).copy()
        is_canary = request_id(request) == CANARY_ID
        return ScoreRequest.of(self.to_compute(prompt), labels, options, is_canary)

    def _read_text(self, request: Any, options: ScoreOptions) -> ScoreRequest | LongRead[ScoreRequest]:
        if self.texts is None:
            raise RequestError("this server's scorer takes token ids alone: 'score' is not loaded (MODELS)")
        if tensor(request, "input_ids") is not None:
            raise RequestError("exactly one of 'input_ids' and 'query' is needed: both were sent")
        plan = self.texts.plan(read_text(request, options))
        encode = partial(self._encode, self.texts, plan, options)
        return LongRead(encode) if plan.cost > LARGE_BYTES else encode()

    def _encode(self, texts: TextReader, plan: EncodingPlan, options: ScoreOptions) -> ScoreRequest:
        encoded = texts.encode(plan)
        return ScoreRequest.of(self.to_compute(encoded.prompt), encoded.label_token_ids, options)
