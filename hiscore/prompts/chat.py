"""A checkpoint's own chat template, rendered in a sandbox as transformers renders it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hiscore.prompts.tracked_text import TrackedText, TrackingGenerator, joined, own

# Ends of prompts that leave the model in the middle of its reasoning, and what ends the reasoning at once.
OPEN_REASONING = "<think>"
NO_REASONING = "\n\n</think>\n\n"
# Stands for a text that is looked for in a rendered template.
PROBE = "The answer."
# GPT-OSS (openai/harmony) begins every message with a channel, and reasons in one that it need not use.
HARMONY, FINAL_CHANNEL = "<|start|>assistant", "<|channel|>final<|message|>"


class PromptError(ValueError):
    """A template refuses these messages, or fails on them; the message says why."""


class GenerationBlocks(Extension):
    """``{% generation %}``, with which templates mark answers for training: what is inside, and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all templates, which keeps track of the text that they write themselves."""

    code_generator_class = TrackingGenerator
    concat = staticmethod(joined)
    own = staticmethod(own)


def sandbox() -> Sandbox:
    """Make an environment with what transformers gives to the templates of checkpoints."""
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        # Constant lists, evaluated beforehand, would not be tracked.
        optimized=False,
        extensions=[loopcontrols, GenerationBlocks],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def compiled(source: str) -> Template:
    try:
        template = sandbox().from_string(source)
    except TemplateError as error:
        raise PromptError(f"the template cannot be compiled: {error}") from None
    # Every rendering copies them, and copying Jinja's chain of mappings takes longer than a short template.
    template.globals = dict(template.globals)
    return template


class ChatTemplate:
    """The chat template of a checkpoint, which may use the names of `special_tokens`, such as ``bos_token``."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._template = compiled(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> TrackedText:
        """Render the prompt for the next message of the assistant, which begins without reasoning.

        `messages` are as OpenAI's chat has them.
        """
        prompt = self.render_as_is(messages, **{"enable_thinking": False, **variables})
        # Some templates begin the reasoning whatever they are told.
        if opens_reasoning(prompt):
            prompt = prompt.rstrip() + own(NO_REASONING)
        return prompt + own(FINAL_CHANNEL) if prompt.ends_with_own(HARMONY) else prompt

    def render_as_is(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> TrackedText:
        """Render a conversation, and leave it to the template whether the model reasons first."""
        given = {"add_generation_prompt": True, **self._special_tokens, **variables}
        if self._reads_parts_alone:
            messages = [{**each, "content": as_parts(each.get("content"))} for each in messages]
        return render(self._template, messages=list(messages), **given)

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """True if the template passes over contents that are no lists of parts, or fails on them."""

        def writes(content: Any) -> bool:
            given = {"add_generation_prompt": True, **self._special_tokens}
            try:
                return PROBE in render(
                    self._template, messages=[{"role": "user", "content": content}], **given
                )
            except PromptError:
                return False

        return writes(as_parts(PROBE)) and not writes(PROBE)


def as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def opens_reasoning(prompt: TrackedText) -> bool:
    return prompt.rstrip().ends_with_own(OPEN_REASONING)


def render(template: Template, **variables: Any) -> TrackedText:
    """Render a template, or raise `PromptError`: the template fails, or refuses what it is given."""
    try:
        return cast("TrackedText", template.render(**variables))
    except (
        TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError
    ) as error:  # fmt: skip
        raise PromptError(f"the template refuses this request: {error}") from None


def read_chat_template(checkpoint: Path, name: str = "default") -> ChatTemplate | None:
    """A checkpoint's chat template, or None if it has none of that name."""
    source = _sources(checkpoint).get(name)
    return ChatTemplate(source, special_tokens(checkpoint)) if source else None


def _sources(checkpoint: Path) -> dict[str, str]:
    """Read all templates of a checkpoint by name, from where transformers reads them first."""
    files = {path.stem: path for path in (checkpoint / "additional_chat_templates").glob("*.jinja")}
    if (file := checkpoint / "chat_template.jinja").is_file():
        files["default"] = file
    if files:
        return {name: path.read_text("utf-8") for name, path in files.items()}
    # The second is that of a processor.
    read = (read_json(checkpoint / name) for name in ("tokenizer_config.json", "chat_template.json"))
    source: Any = next((given for config in read if (given := config.get("chat_template"))), {})
    if isinstance(source, list):
        return {each["name"]: each["template"] for each in source}
    return source if isinstance(source, dict) else {"default": source}


def special_tokens(checkpoint: Path) -> dict[str, TrackedText]:
    """The special tokens that a tokenizer's files name: ``bos_token`` and the like."""
    tokens = {}
    config = read_json(checkpoint / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # as transformers has it
        config |= read_json(checkpoint / "special_tokens_map.json")
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = own(content)
    return tokens


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file; empty if there is none."""
    values: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return values


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
