"""The answers of a chat: what was generated, in OpenAI's shapes, whole and in parts."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hiscore.api.chat.generation import Generations
from hiscore.api.chat.logprobs import ChatLogprobs, LogprobsReader
from hiscore.api.wire import Answer, Usage
from hiscore.prompts.answer_parts import Content, Part, Reasoning, ReasoningReader, ToolCall
from hiscore.prompts.tool_calls import ToolCallReader, ToolFormat
from hiscore_client import Chunk


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class MadeCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class MadeCallPart(MadeCall, kw_only=True):
    """A call in a stream, where it is sent as a whole."""

    index: int


class AnswerMessage(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class AnswerChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(Answer, kw_only=True):
    object: str = "chat.completion"
    choices: list[AnswerChoice]
    usage: Usage


class Delta(msgspec.Struct, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MadeCallPart] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Answer, kw_only=True):
    object: str = "chat.completion.chunk"
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass
class ChatAnswer:
    """One answer as it comes.

    Args:
        reasoning: Tells the reasoning apart.
        tools: The format of calls; None: there are none.
        parallel: Calls after the first are kept.
        logprobs: Reads log-probabilities; None: nobody asks for them.
        as_function: A call has the form that OpenAI gave it first.
    """

    index: int
    reasoning_reader: ReasoningReader
    tools: ToolFormat | None
    parallel: bool
    logprobs: LogprobsReader | None
    as_function: bool
    content: str = ""
    reasoning: str = ""
    calls: list[MadeCall] = field(default_factory=list)
    read_logprobs: ChatLogprobs = field(default_factory=lambda: ChatLogprobs([]))
    reason: str = ""

    def __post_init__(self) -> None:
        self._calls_reader = ToolCallReader(self.tools) if self.tools else None

    def add(self, chunk: Chunk) -> list[ChunkChoice]:
        deltas = [delta for part in self._parts(chunk) if (delta := self._delta(part))]
        choices = [ChunkChoice(self.index, delta) for delta in deltas]
        if self.logprobs and chunk.logprobs:
            read = self.logprobs.of_chat(chunk)
            self.read_logprobs.content += read.content
            choices = choices or [ChunkChoice(self.index, Delta(content=""))]
            choices[0].logprobs = read
        if chunk.finish_reason:
            called = bool(self.calls) and chunk.finish_reason == "stop"
            reason = "function_call" if self.as_function else "tool_calls"
            self.reason = reason if called else chunk.finish_reason
            choices.append(ChunkChoice(self.index, Delta(), finish_reason=self.reason))
        return choices

    @property
    def choice(self) -> AnswerChoice:
        message = AnswerMessage(self.content or (None if self.calls else ""))
        if self.reasoning:
            message.reasoning_content = self.reasoning
        if self.calls and self.as_function:
            message.function_call = self.calls[0].function
        elif self.calls:
            message.tool_calls = self.calls
        return AnswerChoice(self.index, message, self.read_logprobs if self.logprobs else None, self.reason)

    def _parts(self, chunk: Chunk) -> list[Part]:
        last = bool(chunk.finish_reason)
        parts = self.reasoning_reader.push(chunk.text) + (self.reasoning_reader.finish() if last else [])
        if self._calls_reader is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._calls_reader.push(part.text) if isinstance(part, Content) else [part]
        return read + (self._calls_reader.finish() if last else [])

    def _delta(self, part: Part) -> Delta | None:
        if isinstance(part, Content):
            self.content += part.text
            return Delta(content=part.text)
        if isinstance(part, Reasoning):
            self.reasoning += part.text
            return Delta(reasoning_content=part.text)
        if self.calls and not self.parallel:
            return None
        return self._call(part)

    def _call(self, call: ToolCall) -> Delta:
        made = secrets.token_hex(16)
        length = self.tools.id_length if self.tools else 0
        call_id = made[:length] if length else f"call_{made}"
        function = CalledFunction(call.name, call.arguments)
        self.calls.append(MadeCall(call_id, function))
        if self.as_function:
            return Delta(function_call=function)
        return Delta(tool_calls=[MadeCallPart(call_id, function, index=len(self.calls) - 1)])


async def choices_of(
    generations: Generations, answers: Sequence[ChatAnswer]
) -> AsyncGenerator[ChunkChoice, None]:
    """Yield the parts of all answers as they come; each answer begins with its role."""
    begun: set[int] = set()
    async with aclosing(generations.chunks()) as chunks:
        async for index, chunk in chunks:
            if index not in begun:
                begun.add(index)
                yield ChunkChoice(index, Delta(role="assistant", content=""))
            for choice in answers[index].add(chunk):
                yield choice
