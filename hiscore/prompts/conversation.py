"""A conversation to token ids, by the checkpoint's own chat template, and what is known of its answers."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiscore.prompts.answer_parts import END as END_OF_REASONING
from hiscore.prompts.call_form import Message, find_call_form
from hiscore.prompts.chat import (
    PROBE,
    ChatTemplate,
    PromptError,
    as_parts,
    opens_reasoning,
    read_chat_template,
)
from hiscore.prompts.token_limits import TokenLimits
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tool_calls import ToolFormat, format_of
from hiscore.prompts.tracked_text import own


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as `decode` takes it.

    Attributes:
        reasoning: The prompt ends within the model's reasoning; None: behind it, so that there is no more.
    """

    ids: list[int]
    reasoning: bool | None


class Conversations:
    """Makes the prompts of one checkpoint.

    Attributes:
        reasons: Answers may begin with reasoning between marks.
        tool_format: The format of calls of tools; None: unknown.
        takes_parts: The template reads contents in several parts.
        end_ids: The tokens that end an answer in the template.
    """

    def __init__(self, checkpoint: Path, template: ChatTemplate, limits: TokenLimits) -> None:
        self._template, self._limits = template, limits
        self._with_tools = read_chat_template(checkpoint, "tool_use") or template
        source = self._with_tools.source
        self.tokenizer = PromptTokenizer(checkpoint, [template.source, source])
        self.reasons = END_OF_REASONING in source
        self.takes_tools = "tools" in source
        self.tool_format: ToolFormat | None = format_of(source)
        self.knows_developers = "developer" in source
        self.takes_parts = self._takes_parts()
        self.end_ids = self._find_end()
        self._form = find_call_form(self._with_tools)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, **variables: Any
    ) -> ChatPrompt:
        """Make the prompt for the next message of the assistant.

        Args:
            messages: As OpenAI's chat has them, contents as text and arguments of calls as objects.

        Raises:
            PromptError: The template refuses the messages.
            CannotEncode: A text would become a special token, or the library gives up on one.
            TooMuchText: The prompt cannot fit the context.
        """
        template = self._with_tools if tools else self._template
        if tools:
            variables["tools"] = list(tools)
        # Templates make tokens of roles; the API knows them all.
        known = [{**message, "role": own(message["role"])} for message in self._form.apply(messages)]
        text = template.render_as_is(known, **variables)
        self.tokenizer.check_own(
            text, lambda: json.dumps([known, variables], ensure_ascii=False, default=str)
        )
        self._limits.check_bytes("", [self.tokenizer.reveal(text)], self.tokenizer.bytes_per_token)
        (ids,) = self.tokenizer.encode([text])
        if not ids:
            raise PromptError("the messages become an empty prompt")
        ended = text.rstrip().ends_with_own(END_OF_REASONING)
        return ChatPrompt(ids, None if ended else opens_reasoning(text))

    def _takes_parts(self) -> bool:
        with suppress(PromptError):
            one, other = (
                self._template.render_as_is([{"role": "user", "content": content}])
                for content in (as_parts(PROBE), PROBE)
            )
            return one == other
        return False

    def _find_end(self) -> list[int]:
        """Find the token behind an answer of the template, which ends it whatever generation_config.json says."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": PROBE}]
        try:
            text = self._template.render_as_is(messages, add_generation_prompt=False)
        except PromptError:
            return []
        _, found, behind = text.rpartition(PROBE)
        token = self.tokenizer.token_at_start(behind.lstrip()) if found else None
        return [] if token is None else [token]
