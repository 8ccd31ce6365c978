"""``/v1/completions``: text that goes on from a prompt, in OpenAI's body."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hiscore.api.chat.generation import Generations, Generator, stream
from hiscore.api.chat.logprobs import TextLogprobs, TextOffsets
from hiscore.api.chat.prompt_logprobs import PromptLogprobs, PromptScorer, ScoredPrompt
from hiscore.api.chat.sampling import INT32_MAX, MAX_CHOICES, GenerationRequest, Parameter
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.http.events import EventStream, started
from hiscore.api.wire import SOME, Answer, Ignored, ModelCall, TokenId, Usage

ROUTE = "/v1/completions"
# OpenAI's default of this route.
MAX_TOKENS = 16
# Characters that are encoded in the time in which a token's logarithms are written.
WORK_PER_TOKEN = 32
# Fields by which another token than the likeliest could follow.
CHANGING = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens", "stop",
    "stop_token_ids", "response_format", "regex", "ebnf", "structured_outputs",
)  # fmt: skip


class CompletionRequest(GenerationRequest, kw_only=True):
    """One prompt or several, as text or token ids."""

    prompt: str | Annotated[list[str | Annotated[list[TokenId], SOME] | TokenId], SOME]
    max_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    suffix: Literal[""] | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Ignored = None

    @property
    def asks_of_prompts(self) -> bool:
        """True if the prompts' own tokens are asked for, or no others."""
        return bool(self.echo) or self.prompt_logprobs is not None or self.max_tokens == 0


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Answer, kw_only=True):
    object: str = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Completions:
    def __init__(self, generator: Generator, scorer: PromptScorer | None, generates: bool) -> None:
        """Serve by `decode`, if the server `generates`, and by what scores prompts, if it has that."""
        self._generator, self._scorer, self._generates = generator, scorer, generates

    async def handle(self, request: CompletionRequest, call: ModelCall) -> Completion | EventStream:
        prompts = _prompts(request.prompt)
        if len(prompts) * request.choices > MAX_CHOICES:
            raise bad_request(
                f"{len(prompts)} prompts with {request.choices} choices each are more than {MAX_CHOICES}", "n"
            )
        if request.best_of is not None and request.best_of != request.choices:
            raise bad_request("'best_of' is not served: leave it out, or set it to n", "best_of")
        parameters = {"max_tokens": MAX_TOKENS} | self._generator.sampling.parameters(request)
        if request.asks_of_prompts:
            return await self._of_prompts(request, prompts, parameters, call)
        if not self._generates:
            raise bad_request(
                "this server generates nothing: it tells of prompts, with 'max_tokens' 0 or 1 and 'echo' or "
                "'prompt_logprobs'",
                "max_tokens",
            )
        self._generator.check_generates(call)
        if request.add_special_tokens is not None:
            parameters["add_special_tokens"] = request.add_special_tokens
        if request.logprobs is not None:
            if self._generator.logprobs is None:
                raise bad_request("'logprobs' needs a tokenizer, which this model has not", "logprobs")
            parameters["logprobs"] = request.logprobs
        times = self._generator.metrics.token_times(ROUTE)
        generations = Generations(
            self._generator.models, prompts, request.choices, parameters, call.id, times, request.words
        )
        head = Completion(id=f"cmpl-{call.id}", model=call.model, choices=[])
        choices = self._choices(generations)
        if request.stream:
            return await started(stream(head, choices, generations, request))
        return await _whole(head, choices, generations)

    async def _of_prompts(
        self,
        request: CompletionRequest,
        prompts: Sequence[str | Sequence[int]],
        parameters: Mapping[str, Parameter],
        call: ModelCall,
    ) -> Completion:
        if self._scorer is None:
            raise bad_request("'echo' and 'prompt_logprobs' need the model scorer of a causal LM", "echo")
        _check_scored(request, parameters)
        generates = request.max_tokens == 1
        ids = await self._scorer.encode(prompts, request.add_special_tokens is not False, int(generates))
        asked = [each for each in (request.logprobs, request.prompt_logprobs) if each is not None]
        if not request.echo and request.prompt_logprobs is None and not generates:
            asked = []
        top = max(asked, default=None)
        scored, usage = await self._scorer.score(prompts, ids, top, generates, call)
        choices = [
            await off_loop(partial(self._told, request, index, each), len(each.ids) * WORK_PER_TOKEN)
            for index, each in enumerate(scored)
        ]
        return Completion(id=f"cmpl-{call.id}", model=call.model, choices=choices, usage=usage)

    def _told(self, request: CompletionRequest, index: int, scored: ScoredPrompt) -> CompletionChoice:
        assert self._scorer is not None
        reader, text, first = self._scorer.reader, scored.text, 0
        if not request.echo:
            text, first = scored.new_text, scored.prompt_tokens
        choice = CompletionChoice(index, text, finish_reason=scored.finish_reason)
        if request.logprobs is not None:
            choice.logprobs = scored.logprobs(reader, request.logprobs, first)
        if request.prompt_logprobs is not None:
            choice.prompt_logprobs = scored.prompt_logprobs(reader, request.prompt_logprobs)
        return choice

    async def _choices(self, generations: Generations) -> AsyncGenerator[CompletionChoice, None]:
        offsets: dict[int, TextOffsets] = defaultdict(TextOffsets)
        async with aclosing(generations.chunks()) as chunks:
            async for index, chunk in chunks:
                logprobs = None
                if self._generator.logprobs and chunk.logprobs:
                    logprobs = self._generator.logprobs.of_text(chunk, offsets[index])
                if chunk.text or logprobs or chunk.finish_reason:
                    yield CompletionChoice(index, chunk.text, logprobs, chunk.finish_reason or None)


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


def _check_scored(request: CompletionRequest, parameters: Mapping[str, Parameter]) -> None:
    if request.max_tokens not in (0, 1):
        raise bad_request(
            "'echo' and 'prompt_logprobs' are served with 'max_tokens' 0 or 1, where nothing is decoded",
            "max_tokens",
        )
    if request.stream or request.choices != 1:
        name = "stream" if request.stream else "n"
        raise bad_request(f"'{name}' does not go with 'echo', 'prompt_logprobs' or 'max_tokens' 0", name)
    if request.max_tokens == 0:
        return
    if parameters.get("temperature") != 0 and parameters.get("top_k") != 1:
        raise bad_request(
            "'temperature' must be 0 with 'echo' or 'prompt_logprobs': the token behind a prompt is the likeliest",
            "temperature",
        )
    neutral = {"repetition_penalty": 1.0, "min_tokens": 1}
    for name in CHANGING:
        if (value := getattr(request, name)) and value != neutral.get(name):
            raise bad_request(f"'{name}' does not go with 'echo' or 'prompt_logprobs'", name)


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
