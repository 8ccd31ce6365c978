"""``/v1/chat/completions``: the next message of a conversation, in OpenAI's body."""

import json
from contextlib import aclosing
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from hiscore.api.chat.answer import ChatAnswer, ChatChunk, ChatCompletion, choices_of
from hiscore.api.chat.generation import Generations, Generator, stream
from hiscore.api.chat.messages import ChatMessage, Function, FunctionName, Tool, prompt_of
from hiscore.api.chat.sampling import GeneratedTokens, GenerationRequest, Parameter
from hiscore.api.chat.structured_outputs import FIELD
from hiscore.api.chat.tools import ToolChoice, ToolUse, offered, tool_use
from hiscore.api.http.errors import bad_request
from hiscore.api.http.events import EventStream, started
from hiscore.api.wire import SOME, Ignored, ModelCall
from hiscore.prompts.answer_parts import BEGIN, END, ReasoningReader
from hiscore.prompts.conversation import ChatPrompt, Conversations

ROUTE = "/v1/chat/completions"
# Parameters that hold for an answer, and not for the reasoning before it.
ONLY_ANSWER = {"stop", "json_schema", "regex", "ebnf"}
NOT_FOR_TEMPLATES = {"messages", "tools", "template", "self"}


class Thinking(msgspec.Struct):
    """The switch of reasoning in Anthropic's words, which LiteLLM and GLM have, too."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Ignored = None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: Annotated[list[ChatMessage], SOME]
    max_completion_tokens: GeneratedTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: Thinking | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: Literal[True] | None = None
    include_reasoning: Literal[True] | None = None
    add_generation_prompt: Literal[True] | None = None
    continue_final_message: Literal[False] | None = None
    add_special_tokens: Literal[False] | None = None
    echo: Literal[False] | None = None
    verbosity: Literal["medium"] | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: Ignored = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Ignored = None


class Chat:
    """Serves the route; without `conversations` there is no chat template, and every request is refused."""

    def __init__(
        self,
        generator: Generator,
        conversations: Conversations | None,
        refusal: str = "this model has no chat template",
    ) -> None:
        self._generator, self._conversations, self._refusal = generator, conversations, refusal

    async def handle(self, request: ChatRequest, call: ModelCall) -> ChatCompletion | EventStream:
        self._generator.check_generates(call)
        if self._conversations is None or self._generator.logprobs is None:
            raise bad_request(f"{self._refusal}: use /v1/completions", "messages")
        times = self._generator.metrics.token_times(ROUTE)
        parallel = request.parallel_tool_calls is not False and not request.functions
        try:
            parameters = self._generator.sampling.parameters(request)
            use = tool_use(
                *offered(request.tools, request.tool_choice, request.functions, request.function_call),
                parallel,
                self._conversations,
                cast("str | None", parameters.get("json_schema")),
            )
            prompt = await _prompt(self._conversations, request, use)
        except RecursionError:
            raise bad_request("the body's JSON is nested too deeply", code="invalid_json") from None
        parameters |= _further(request, self._conversations)
        if use.grammar is not None:
            parameters = _confined(parameters, use.grammar, request)
        tells_reasoning = self._conversations.reasons and request.separate_reasoning is not False
        marks = {END} if tells_reasoning else set()
        if use.format:
            marks |= {use.format.begin, use.format.end}
        if marks & self._conversations.tokenizer.special:
            parameters["skip_special_tokens"] = False  # else the marks had no text
        if tells_reasoning and prompt.reasoning is not None and ONLY_ANSWER & parameters.keys():
            parameters["reasoning"] = json.dumps([END] if prompt.reasoning else [BEGIN, END])
        words = {**request.words, **use.words}
        generations = Generations(
            self._generator.models, [prompt.ids], request.choices, parameters, call.id, times, words
        )
        answers = [
            ChatAnswer(
                index,
                ReasoningReader(bool(prompt.reasoning) if tells_reasoning else None),
                use.format,
                parallel,
                self._generator.logprobs if request.logprobs else None,
                bool(request.functions),
            )
            for index in range(request.choices)
        ]
        chat_id = f"chatcmpl-{call.id}"
        if request.stream:
            head = ChatChunk(id=chat_id, model=call.model, choices=[])
            return await started(stream(head, choices_of(generations, answers), generations, request))
        async with aclosing(generations.chunks()) as chunks:
            async for index, chunk in chunks:
                answers[index].add(chunk)
        choices = [answer.choice for answer in answers]
        return ChatCompletion(id=chat_id, model=call.model, choices=choices, usage=generations.usage)


def _further(request: ChatRequest, conversations: Conversations) -> dict[str, Parameter]:
    """Make the parameters beside those of completions, too."""
    parameters: dict[str, Parameter] = {}
    if request.max_completion_tokens is not None:
        parameters["max_tokens"] = request.max_completion_tokens
    if request.top_logprobs and not request.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    if request.logprobs:
        parameters["logprobs"] = request.top_logprobs or 0
    if conversations.end_ids and not request.ignore_eos:
        parameters["stop_token_ids"] = str([*(request.stop_token_ids or []), *conversations.end_ids])
    return parameters


def _confined(parameters: dict[str, Parameter], grammar: str, request: ChatRequest) -> dict[str, Parameter]:
    """Put the grammar of calls in the place of the schema, which is a part of it where it holds."""
    if others := {"regex", "ebnf"} & parameters.keys():
        field = FIELD if request.structured_outputs else min(others)
        raise bad_request(f"'{field}' cannot hold for an answer that calls 'tools' by a grammar", field)
    return {name: value for name, value in parameters.items() if name != "json_schema"} | {"ebnf": grammar}


async def _prompt(conversations: Conversations, request: ChatRequest, use: ToolUse) -> ChatPrompt:
    variables = dict(request.chat_template_kwargs or {})
    if wrong := NOT_FOR_TEMPLATES & variables.keys():
        raise bad_request(f"'chat_template_kwargs' must not set '{min(wrong)}'", "chat_template_kwargs")
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if request.thinking is not None and request.thinking.type != "adaptive":
        # Templates call it one or the other.
        for name in ("enable_thinking", "thinking"):
            variables.setdefault(name, request.thinking.type == "enabled")
    return await prompt_of(conversations, request.messages, use.tools, variables)
