"""The answers of a chat: what was generated, in OpenAI's shapes, whole and in parts."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from hiscore.api.chat.generation import Generations
from hiscore.api.chat.logprobs import ChatLogprobs, LogprobsReader
from hiscore.api.wire import Usage
from hiscore.prompts.answer_parts import Content, Part, Reasoning, ToolCall
from hiscore.prompts.reasoning import ReasoningReader
from hiscore.prompts.tool_calls import ToolCallReader, ToolFormat
from hiscore_client import Chunk


class CalledFunction(msgspec.Struct):
    """A call: arguments in JSON."""

    name: str
    arguments: str


class MadeCall(msgspec.Struct):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: str = "function"


class MadeCallPart(MadeCall, kw_only=True):
    """A call in a stream, where it is sent as a whole."""

    index: int


class AnswerMessage(msgspec.Struct):
    """The message of the assistant."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class AnswerChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answers."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage


class Delta(msgspec.Struct, omit_defaults=True):
    """The new part of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MadeCallPart] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """The new part of an answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatAnswer:
    """One answer as it comes.

    Args:
        parallel: Calls after the first are kept.
        logprobs: Reads log-probabilities; None: nobody asks for them.
        as_function: A call has the form that OpenAI gave it first.
    """

    def __init__(
        self,
        index: int,
        reasoning: bool | None,
        tools: ToolFormat | None,
        parallel: bool,
        logprobs: LogprobsReader | None,
        as_function: bool = False,
    ) -> None:
        self._index, self._logprobs = index, logprobs
        self._reader = AnswerReader(reasoning, tools)
        self._id_length = tools.id_length if tools else 0
        self._parallel, self._as_function = parallel, as_function
        self._content, self._reasoning = "", ""
        self._calls: list[MadeCall] = []
        self._read_logprobs = ChatLogprobs([])
        self._reason = ""

    def add(self, chunk: Chunk) -> list[ChunkChoice]:
        """Add one more chunk; return what it adds to a stream."""
        parts = self._reader.push(chunk.text)
        if chunk.finish_reason:
            parts += self._reader.finish()
        deltas = [delta for part in parts if (delta := self._delta(part))]
        choices = [ChunkChoice(self._index, delta) for delta in deltas]
        if self._logprobs and chunk.logprobs:
            read = self._logprobs.of_chat(chunk)
            self._read_logprobs.content += read.content
            choices = choices or [ChunkChoice(self._index, Delta(content=""))]
            choices[0].logprobs = read
        if chunk.finish_reason:
            called = bool(self._calls) and chunk.finish_reason == "stop"
            reason = "function_call" if self._as_function else "tool_calls"
            self._reason = reason if called else chunk.finish_reason
            choices.append(ChunkChoice(self._index, Delta(), finish_reason=self._reason))
        return choices

    @property
    def choice(self) -> AnswerChoice:
        """Return the whole answer."""
        message = AnswerMessage(self._content or (None if self._calls else ""))
        if self._reasoning:
            message.reasoning_content = self._reasoning
        if self._calls and self._as_function:
            message.function_call = self._calls[0].function
        elif self._calls:
            message.tool_calls = self._calls
        return AnswerChoice(
            self._index, message, self._read_logprobs if self._logprobs else None, self._reason
        )

    def _delta(self, part: Part) -> Delta | None:
        if isinstance(part, Content):
            self._content += part.text
            return Delta(content=part.text)
        if isinstance(part, Reasoning):
            self._reasoning += part.text
            return Delta(reasoning_content=part.text)
        if self._calls and not self._parallel:
            return None
        return self._call(part)

    def _call(self, call: ToolCall) -> Delta:
        made = secrets.token_hex(16)
        call_id = made[: self._id_length] if self._id_length else f"call_{made}"
        function = CalledFunction(call.name, call.arguments)
        self._calls.append(MadeCall(call_id, function))
        if self._as_function:
            return Delta(function_call=function)
        return Delta(tool_calls=[MadeCallPart(call_id, function, index=len(self._calls) - 1)])


class StreamWishes(Protocol):
    """The options of a stream."""

    @property
    def tells_usage(self) -> bool: ...
    @property
    def stream_options(self) -> Any: ...


class ChatStream:
    """The events of one request, all with the same id, time and model (`identity`)."""

    def __init__(self, identity: dict[str, Any], request: StreamWishes) -> None:
        self._identity, self._request = identity, request

    async def events(
        self, generations: Generations, answers: Sequence[ChatAnswer]
    ) -> AsyncGenerator[ChatChunk, None]:
        """Yield all events: each answer begins with its role, and the usage, if asked for, comes last."""
        request = self._request
        always = bool(request.stream_options and request.stream_options.continuous_usage_stats)
        begun: set[int] = set()
        async with aclosing(generations.chunks()) as chunks:
            async for index, chunk in chunks:
                new = answers[index].add(chunk)
                if index not in begun:
                    begun.add(index)
                    new.insert(0, ChunkChoice(index, Delta(role="assistant", content="")))
                for choice in new:
                    yield self._chunk([choice], generations.usage if always else None)
        if request.tells_usage:
            yield self._chunk([], generations.usage)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None) -> ChatChunk:
        told = usage if usage or self._request.tells_usage else UNSET
        return ChatChunk(**self._identity, choices=choices, usage=told)


class AnswerReader:
    """Reads one answer.

    Args:
        reasoning: True if the prompt has begun the reasoning; None: reasoning is not told apart.
        tools: The format of calls; None: there are none.
    """

    def __init__(self, reasoning: bool | None, tools: ToolFormat | None) -> None:
        self._reasoning = None if reasoning is None else ReasoningReader(reasoning)
        self._tools = None if tools is None else ToolCallReader(tools)

    def push(self, text: str) -> list[Part]:
        return self._read(self._reasoning.push(text) if self._reasoning else [Content(text)] if text else [])

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        parts = self._read(self._reasoning.finish()) if self._reasoning else []
        return [*parts, *(self._tools.finish() if self._tools else [])]

    def _read(self, parts: list[Part]) -> list[Part]:
        if self._tools is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tools.push(part.text) if isinstance(part, Content) else [part]
        return read
