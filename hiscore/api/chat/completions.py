"""``/v1/completions``: text that goes on from a prompt, in OpenAI's body."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hiscore.api.chat.generation import Generations, Generator
from hiscore.api.chat.logprobs import TextLogprobs, TextOffsets
from hiscore.api.chat.sampling import MAX_CHOICES, GenerationRequest
from hiscore.api.http.errors import bad_request
from hiscore.api.http.events import EventStream, started
from hiscore.api.wire import SOME, Ignored, TokenId, Usage

ROUTE = "/v1/completions"
# OpenAI's default of this route.
MAX_TOKENS = 16


class CompletionRequest(GenerationRequest, kw_only=True):
    """One prompt or several, as text or token ids."""

    prompt: str | Annotated[list[str | Annotated[list[TokenId], SOME] | TokenId], SOME]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Ignored = None


class CompletionChoice(msgspec.Struct):
    """A completion, or the next part of one."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or a part of it."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Completions:
    """Serves the route."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def handle(self, request: CompletionRequest, request_id: str) -> Completion | EventStream:
        model = self._generator.names.check(request.model)
        prompts = _prompts(request.prompt)
        if len(prompts) * request.choices > MAX_CHOICES:
            raise bad_request(
                f"{len(prompts)} prompts with {request.choices} choices each are more than {MAX_CHOICES}", "n"
            )
        if request.best_of is not None and request.best_of != request.choices:
            raise bad_request("'best_of' is not served: leave it out, or set it to n", "best_of")
        parameters = {"max_tokens": MAX_TOKENS} | self._generator.sampling.parameters(request)
        if request.add_special_tokens is not None:
            parameters["add_special_tokens"] = request.add_special_tokens
        if request.logprobs is not None:
            if self._generator.logprobs is None:
                raise bad_request("'logprobs' needs a tokenizer, which this model has not", "logprobs")
            parameters["logprobs"] = request.logprobs
        times = self._generator.metrics.token_times(ROUTE)
        generations = Generations(
            self._generator.models, prompts, request.choices, parameters, request_id, times, request.words
        )
        head = Completion(id=f"cmpl-{request_id}", created=int(time.time()), model=model, choices=[])
        choices = self._choices(generations)
        if request.stream:
            return await started(_stream(head, choices, generations, request))
        return await _whole(head, choices, generations)

    async def _choices(self, generations: Generations) -> AsyncGenerator[CompletionChoice, None]:
        """Yield the parts of all choices as they come."""
        offsets: dict[int, TextOffsets] = defaultdict(TextOffsets)
        async with aclosing(generations.chunks()) as chunks:
            async for index, chunk in chunks:
                logprobs = None
                if self._generator.logprobs and chunk.logprobs:
                    logprobs = self._generator.logprobs.of_text(chunk, offsets[index])
                yield CompletionChoice(index, chunk.text, logprobs, chunk.finish_reason or None)


async def _stream(
    head: Completion,
    choices: AsyncGenerator[CompletionChoice, None],
    generations: Generations,
    request: CompletionRequest,
) -> AsyncGenerator[Completion, None]:
    options = request.stream_options
    usage: Usage | UnsetType | None = None if request.tells_usage else UNSET
    async with aclosing(choices) as parts:
        async for part in parts:
            if options and options.continuous_usage_stats:
                usage = generations.usage
            if part.text or part.logprobs or part.finish_reason:
                yield msgspec.structs.replace(head, choices=[part], usage=usage)
    if request.tells_usage:
        yield msgspec.structs.replace(head, usage=generations.usage)


async def _whole(
    head: Completion, parts: AsyncGenerator[CompletionChoice, None], generations: Generations
) -> Completion:
    choices = [CompletionChoice(index, "") for index in range(generations.count)]
    async with aclosing(parts):
        async for part in parts:
            choice = choices[part.index]
            choice.text += part.text
            choice.finish_reason = part.finish_reason
            if part.logprobs and choice.logprobs:
                for name in TextLogprobs.__struct_fields__:
                    getattr(choice.logprobs, name).extend(getattr(part.logprobs, name))
            else:
                choice.logprobs = part.logprobs or choice.logprobs
    return msgspec.structs.replace(head, choices=choices, usage=generations.usage)


def _prompts(prompt: str | list[str | list[int] | int]) -> Sequence[str | Sequence[int]]:
    """Each prompt of a request: a list of integers is one."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(each) for each in prompt}
    if len(kinds) > 1:
        raise bad_request("'prompt' mixes texts and token ids", "prompt")
    if not kinds:
        raise bad_request("'prompt' is empty", "prompt")
    if [] in prompt:
        raise bad_request("'prompt' holds a list without a token id", "prompt")
    return [cast("list[int]", prompt)] if kinds == {int} else cast("list[str | list[int]]", prompt)
