"""The ``tokenizer`` model: a query and its items in text to the packed layout in token ids."""

from pathlib import Path
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.logs import configure_model
from hiscore.models.config import read_facts
from hiscore.parameters import one_row
from hiscore.scoring.encode import TextRequest, TokenizedRequest, encode_calls
from hiscore.scoring.options import parse_options
from hiscore.serving.batcher import Engine
from hiscore.serving.metrics import Counters, TotalsFeed
from hiscore.serving.triton_io import Answer, parameters, required_tensor, send, serve, strings, tensor
from hiscore.settings import TokenizerSettings, from_model_config
from hiscore.tokenization import load_tokenizer

# Characters encoded in one batch: enough to use every core, few enough that a small call does not wait long.
MAX_BATCH_CHARACTERS = 2**20


class TritonPythonModel:
    """One instance serves all requests; the tokenizer itself uses the machine's cores."""

    def initialize(self, args: dict[str, str]) -> None:
        self.settings = from_model_config(TokenizerSettings, args["model_config"])
        configure_model(self.settings.log_format, args["model_name"])
        checkpoint = Path(self.settings.checkpoint)
        self.facts = read_facts(checkpoint)
        self.tokenizer = load_tokenizer(checkpoint)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counters = Counters(
            {
                "hiscore_full_encodes_total": "Calls whose whole query was tokenised anew with each of its items",
                "hiscore_tokenized_calls_total": "Calls turned from text into token ids",
                "hiscore_tokenizer_batches_total": "Batches that the tokenizer formed",
            },
            labels,
        )
        self.feed = TotalsFeed(labels, lambda: self.engine.totals)
        self.engine: Engine[TextRequest] = Engine(
            launch=self.launch,
            answer=lambda ticket, answer: send(ticket.reply_to, answer),
            failed=lambda error: None,
            abandoned=lambda ticket: ticket.reply_to.sender.is_cancelled(),
            cost=text_length,
            budget=MAX_BATCH_CHARACTERS,
            max_queue=self.settings.max_queue,
            inline=False,
        )

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, read, self.engine, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.engine.close()

    def launch(self, calls: list[TextRequest]) -> "EncodedBatch":
        answers = encode_calls(self.tokenizer, calls, self.settings, self.facts)
        return EncodedBatch(answers, self.counters, self.feed)


class EncodedBatch:
    """An encoded batch, and what it counts once its callers have their answers."""

    def __init__(
        self, answers: list[TokenizedRequest | RequestError], counters: Counters, feed: TotalsFeed
    ) -> None:
        self.answers, self.counters, self.feed = answers, counters, feed

    def finish(self) -> list[Answer]:
        return [
            outputs(answer) if isinstance(answer, TokenizedRequest) else answer for answer in self.answers
        ]

    def count(self) -> None:
        self.feed.update()
        good = [answer for answer in self.answers if isinstance(answer, TokenizedRequest)]
        self.counters.add(
            hiscore_full_encodes_total=sum(call.full_encode for call in good),
            hiscore_tokenized_calls_total=len(good),
            hiscore_tokenizer_batches_total=1,
        )


def text_length(call: TextRequest) -> int:
    """Characters of a call's texts."""
    return len(call.query) + sum(map(len, call.items))


def outputs(call: TokenizedRequest) -> Answer:
    """The response's tensors, with Triton's leading batch dimension."""
    return {
        "input_ids": call.input_ids[None],
        "delimiter_indices": call.delimiter_indices[None],
        "label_token_ids": call.label_token_ids[None],
    }


def read(request: Any) -> TextRequest:
    """One request's tensors and parameters."""
    options = parse_options(parameters(request))
    query = texts(request, "query") or []
    if len(query) != 1:
        raise RequestError(f"'query' must be one string, not {len(query)}")
    ids = tensor(request, "label_token_ids")
    return TextRequest(
        query=query[0],
        items=texts(request, "items") or [],
        labels=texts(request, "labels", required=False),
        label_token_ids=None if ids is None else one_row("label_token_ids", ids, np.int32).copy(),
        item_first=options.item_first,
    )


def texts(request: Any, name: str, required: bool = True) -> list[str] | None:
    """The strings of an input, or None if it was not sent and need not be."""
    values = required_tensor(request, name) if required else tensor(request, name)
    return None if values is None else strings(one_row(name, values, np.object_), name)
