"""The command ``hiscore generate``."""

import uuid
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hiscore_client.cli.common import AsJson, InFlight, Timeout, Url, read_lines, write_answers
from hiscore_client.cli.exits import exit_on_failure
from hiscore_client.cli.records import Completion, PromptRecord, parse_prompt_record, read_records
from hiscore_client.cli.show import progress_bar, strip_control_characters, waiting_line
from hiscore_client.client import ScoreClient
from hiscore_client.concurrent_calls import answer_in_order
from hiscore_client.config import DEFAULT_URL
from hiscore_client.errors import InvalidRequest
from hiscore_client.generated import Chunk


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, JSON Lines are read")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="JSON Lines; - or none: stdin")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Maximum number of new tokens")] = 16,
    temperature: Annotated[float, typer.Option(help="0: greedy; otherwise tokens are sampled")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: from all")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens that add up to this probability")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end-of-sequence token")
    ] = False,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the text; repeatable")] = None,
    stop_id: Annotated[
        list[int] | None, typer.Option(help="A token id that ends the text; repeatable")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from tokens with this share of the likeliest's probability")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens of prompt and output become less likely")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens in the output")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted as often as a token is in the output")
    ] = None,
    logit_bias: Annotated[
        str | None, typer.Option(help='JSON: token ids and what is added to their logits, {"5": -100}')
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Tokens before which nothing ends the text")] = None,
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Print the stop string too")] = False,
    json_schema: Annotated[str | None, typer.Option(help="The text is JSON of this schema")] = None,
    regex: Annotated[str | None, typer.Option(help="The text matches this regular expression")] = None,
    ebnf: Annotated[str | None, typer.Option(help="The text is of this grammar")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Add log-probabilities, with so many alternatives, to the JSON")
    ] = None,
    rendered: Annotated[
        bool, typer.Option("--rendered", help="The prompt has its special tokens, as a chat template gives")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Attend to every token")] = False,
    timeout: Timeout = None,
    in_flight: InFlight = 8,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Continue one prompt, or JSON Lines of {"prompt": ..., "id": ...}; a prompt is a text or a list of token ids.

    Prints the text to a terminal as it arrives, otherwise one line of JSON per record, in order. A record that
    fails gives a line with "error" and does not stop the others; the exit code is that of the first failure.
    """
    if prompt is not None and file:
        raise typer.BadParameter("give a prompt on the command line or with --file, not both")
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "stop": stop or [],
        "stop_token_ids": stop_id or [],
        "sparse": not full,
        "timeout": timeout,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": logit_bias,
        "min_tokens": min_tokens,
        "json_schema": json_schema,
        "regex": regex,
        "ebnf": ebnf,
        "logprobs": logprobs,
        **({"include_stop_str_in_output": True} if include_stop else {}),
        **({"add_special_tokens": False} if rendered else {}),
    }
    out, err = Console(), Console(stderr=True)
    as_json = as_json or not out.is_terminal
    code = 0
    with exit_on_failure(url), ScoreClient(url) as client:
        if prompt is not None and not as_json:
            waiting = waiting_line(err, f"waiting for the first token from {url}")
            _stream(out, client.generate(prompt, **options), waiting)
        else:
            records: Iterable[PromptRecord | InvalidRequest] = [PromptRecord(prompt or "")]
            if prompt is None:
                records = read_records(read_lines(file), parse_prompt_record)
            with progress_bar(err, out, "generating", "prompts") as progress:

                def generate_one(record: PromptRecord) -> Completion:
                    request_id = uuid.uuid4().hex
                    chunks = client.generate(record.prompt, request_id=request_id, **options)
                    completion = _join(chunks, request_id)
                    progress.advance(progress.task_ids[0])
                    return completion

                def show(record: PromptRecord, completion: Completion) -> None:
                    # Without a tokenizer there is no text.
                    text = completion.text or " ".join(map(str, completion.token_ids))
                    out.print(
                        Text(str(record.prompt), style="bold"), Text(strip_control_characters(text)), sep="\n"
                    )

                code = write_answers(
                    answer_in_order(generate_one, records, in_flight), err, None if as_json else show
                )
    raise typer.Exit(code)


def _stream(
    out: Console, chunks: Generator[Chunk, None, None], waiting: AbstractContextManager[object]
) -> None:
    """Print text as it arrives; until then, show what is waited for."""
    try:
        with waiting:
            first = next(chunks, None)
        for chunk in chain([] if first is None else [first], chunks):
            out.file.write(strip_control_characters(chunk.text))
            out.file.flush()
    finally:
        chunks.close()
        out.file.write("\n")


def _join(chunks: Iterable[Chunk], request_id: str) -> Completion:
    every = list(chunks)
    return Completion(
        "".join(chunk.text for chunk in every),
        [token for chunk in every for token in chunk.token_ids],
        every[-1].finish_reason,
        request_id,
        [value for chunk in every for value in chunk.logprobs] or None,
        [ids for chunk in every for ids in chunk.top_token_ids] or None,
        [values for chunk in every for values in chunk.top_logprobs] or None,
    )
