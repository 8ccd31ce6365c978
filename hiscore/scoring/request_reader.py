"""Triton's requests to the scorer, by token ids or by text, as the requests that are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hiscore.batching.stages import Staged
from hiscore.edge.triton_io import parameters, request_id, required_tensor, tensor
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import one_row
from hiscore.scoring.requests.layout import unpack
from hiscore.scoring.requests.options import ScoreOptions, parse_options
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import check_labels, check_prompt
from hiscore.scoring.text.batched_tokenizer import BatchedTokenizer
from hiscore.scoring.text.encode import TokenizedRequest
from hiscore.scoring.text.text_inputs import TEXTS, read_text
from hiscore.settings import CANARY_ID, Limits

IDS = ("input_ids", "delimiter_indices")


@dataclass(frozen=True)
class RequestReader:
    """Reads and validates requests, and copies all that they hold.

    `to_compute` turns a validated prompt into what is computed; without a `tokenizer` only token ids are taken.
    """

    facts: CheckpointFacts
    limits: Limits
    to_compute: Callable[[MultiItemPrompt], MultiItemPrompt]
    tokenizer: BatchedTokenizer | None

    def read(self, request: Any) -> ScoreRequest | Staged[ScoreRequest]:
        """Read a request by ids, or one by text, which the tokenizer's batcher works on first."""
        options = parse_options(parameters(request))
        texts = [name for name in TEXTS if tensor(request, name) is not None]
        if not texts:
            return self._read_ids(request, options)
        if self.tokenizer is None:
            raise RequestError("this server's scorer takes token ids alone: 'score' is not loaded (MODELS)")
        if ids := [name for name in IDS if tensor(request, name) is not None]:
            raise RequestError(
                f"'{ids[0]}' and '{texts[0]}' were both sent: a call is by token ids or by text"
            )
        job = self.tokenizer.job(read_text(request, options))
        return Staged(job, partial(self._of_text, options, _is_canary(request)))

    def _read_ids(self, request: Any, options: ScoreOptions) -> ScoreRequest:
        if self.tokenizer is not None and tensor(request, "input_ids") is None:
            raise RequestError("'query' or 'input_ids' is missing")
        ids, indices, labels = (
            one_row(name, required_tensor(request, name), np.int32) for name in (*IDS, "label_token_ids")
        )
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.limits, self.facts)
        items = len(prompt.item_lengths)
        labels = check_labels(labels, self.limits, self.facts, options.label_counts, items).copy()
        return ScoreRequest.of(self.to_compute(prompt), labels, options, _is_canary(request))

    def _of_text(self, options: ScoreOptions, is_canary: bool, encoded: TokenizedRequest) -> ScoreRequest:
        prompt = self.to_compute(encoded.prompt)
        return ScoreRequest.of(prompt, encoded.label_token_ids, options, is_canary)


def _is_canary(request: Any) -> bool:
    return request_id(request) == CANARY_ID
