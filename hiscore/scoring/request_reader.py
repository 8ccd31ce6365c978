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
from hiscore.scoring.requests import adapters
from hiscore.scoring.requests.layout import unpack, unpack_labels
from hiscore.scoring.requests.options import ScoreOptions, parse_options
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import (
    check_computed,
    check_labels,
    check_prompt,
    with_places,
    with_tries,
)
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import CANARY_ID, Limits

PLACES, PLACE_VALUES = "places", "place_values"
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
        """Read a request, or raise `RequestError`; the message names the input or the parameter."""
        options = parse_options(parameters(request))
        # A caller who names no outputs is taken to have named all.
        asked = request.requested_output_names()
        as_row = "probabilities" in asked and "scores" not in asked
        if as_row:
            options = replace(options, apply_softmax=True, raw_logits=False)
        ids, indices, labels = (one_row(name, required_tensor(request, name), np.int32) for name in INPUTS)
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.limits, self.facts)
        items, places = len(prompt.item_lengths), None
        if self.facts.scores_tokens and PLACE_VALUES not in asked:
            raise RequestError(
                f"this model scores tokens, not items: ask for '{PLACES}' and '{PLACE_VALUES}'"
            )
        if PLACE_VALUES in asked and (self.facts.scores_tokens or options.places is not None):
            prompt, places = with_places(prompt, options, self.facts)
        if as_row and items != 1:
            raise RequestError(f"'probabilities' are of one item, not of {items}: ask for 'scores'")
        labels, sizes = unpack_labels(labels)
        if sizes and options.label_lengths is not None:
            raise RequestError(
                "parameter 'label_lengths' cuts 'label_token_ids': it does not go with 'labels'"
            )
        lengths = sizes[0] if sizes else options.label_lengths
        label_bytes = sizes[1] if len(sizes) > 1 else None
        chosen = adapters.choose(options.adapter, options.item_adapters, items, self.facts)
        by_heads = adapters.has_heads(chosen, self.facts)
        facts = replace(self.facts, is_classifier=True) if by_heads else self.facts
        labels = check_labels(labels, self.limits, facts, options.label_counts, items, lengths).copy()
        prompt = with_tries(prompt, labels, lengths, label_bytes, options, self.limits, facts)
        if chosen:
            prompt = adapters.under(prompt, chosen)
        prompt = self.to_compute(prompt)
        check_computed(prompt, self.limits)
        is_canary = request_id(request) == CANARY_ID
        made = ScoreRequest.of(prompt, labels, options, is_canary)
        if by_heads:
            if places is not None:
                raise RequestError(f"'{PLACES}' are read by the checkpoint's head, not by an adapter's own")
            rows, counts = adapters.rows_of_heads(chosen, self.facts)
            made = replace(
                made, labels=rows, label_counts=counts, columns=int(counts.max(initial=0)), by_heads=True
            )
        made = replace(made, as_row=True) if as_row else made
        return replace(made, places=places, scores_items=not self.facts.scores_tokens)


def read_text(request: Any, options: ScoreOptions) -> TextRequest:
    """Read a request in text, and copy all that it holds; raises `RequestError`."""
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
        label_lengths=options.label_lengths,
        by_bytes=options.normalize == "bytes",
        item_first=options.item_first,
        adapter=options.adapter,
        item_adapters=options.item_adapters,
        text_bytes=sum(sum(map(len, texts)) for texts in (query, items, labels) if texts is not None),
    )


def _row(request: Any, name: str, dtype: npt.DTypeLike) -> Any:
    values = tensor(request, name)
    return None if values is None else one_row(name, values, dtype)
