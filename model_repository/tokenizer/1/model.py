"""The ``tokenizer`` model: a query and its items in text to the packed layout in token ids."""

from pathlib import Path
from typing import Any

import numpy as np

from hiscore.capabilities import read_facts
from hiscore.errors import RequestError
from hiscore.options import parse_options
from hiscore.serving.batch import Outputs, required_tensor, run_batch, strings, tensor
from hiscore.serving.metrics import Counters
from hiscore.settings import TokenizerSettings, from_model_config
from hiscore.tokenization import TextCall, encode_calls, load_tokenizer
from hiscore.validation import one_row


class TritonPythonModel:
    """One instance serves all requests; the tokenizer itself uses the machine's cores."""

    def initialize(self, args: dict[str, str]) -> None:
        self.limits = from_model_config(TokenizerSettings, args["model_config"])
        checkpoint = Path(self.limits.checkpoint)
        self.facts = read_facts(checkpoint)
        self.tokenizer = load_tokenizer(checkpoint)
        self.counters = Counters(
            {
                "hiscore_full_encodes_total": "Calls whose whole query was tokenised anew with each of its items",
                "hiscore_tokenized_calls_total": "Calls turned from text into token ids",
            },
            labels={"model": args["model_name"], "version": args["model_version"]},
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return run_batch(requests, read, self.compute)

    def compute(self, calls: list[TextCall]) -> list[Outputs | RequestError]:
        answers = encode_calls(self.tokenizer, calls, self.limits, self.facts)
        good = [answer for answer in answers if not isinstance(answer, RequestError)]
        self.counters.add(
            hiscore_full_encodes_total=sum(answer.full_encode for answer in good),
            hiscore_tokenized_calls_total=len(good),
        )
        return [
            answer
            if isinstance(answer, RequestError)
            else {
                "input_ids": answer.input_ids[None],
                "delimiter_indices": answer.delimiter_indices[None],
                "label_token_ids": answer.label_token_ids[None],
            }
            for answer in answers
        ]


def read(request: Any) -> TextCall:
    """One request's tensors and parameters."""
    options = parse_options(request.parameters())
    query = texts(request, "query") or []
    if len(query) != 1:
        raise RequestError(f"'query' must be one string, not {len(query)}")
    ids = tensor(request, "label_token_ids")
    return TextCall(
        query=query[0],
        items=texts(request, "items") or [],
        labels=texts(request, "labels", required=False),
        label_token_ids=None if ids is None else one_row("label_token_ids", ids, np.int32),
        item_first=options.item_first,
    )


def texts(request: Any, name: str, required: bool = True) -> list[str] | None:
    """The strings of an input, or None if it was not sent and need not be."""
    values = required_tensor(request, name) if required else tensor(request, name)
    return None if values is None else strings(one_row(name, values, np.object_), name)
