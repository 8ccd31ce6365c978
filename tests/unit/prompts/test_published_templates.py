"""Published chat templates: the ids are those that transformers gives, and callers write no special token."""

import copy
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jinja2 import TemplateError
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from hiscore.prompts.call_form import one_call_each
from hiscore.prompts.chat import PromptError, read_chat_template
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.token_limits import TokenLimits
from tests.support import tiny_tokenizers
from tests.support.chat_templates import FIELDS, SYSTEM, TOLD, TOOL, USER, attacked, called, result, said

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates"
# What templates write as tokens, in the notations of all families.
TOKENS = re.compile(r"<[|｜][^<>{}' ]+[|｜]>|</?think>|</?tool_\w+>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>")
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "one question": [USER],
    "with a system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, said("An apple."), USER],
    "reasoning in the text": [USER, said("<think>\nlong reasoning\n</think>\n\nAn apple."), USER],
    "reasoning apart": [USER, said("An apple.", reasoning_content="hm"), USER],
    "a tool": [USER, called(1), result(1)],
    "tools": TOLD,
    "two calls": [USER, called(1, 2), result(1), result(2)],
}
WISHES: list[dict[str, Any]] = [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"tools": [TOOL]}]


KNOWS_NO_CALLS = "cohere2", "gemma3", "phi_35"


class Published(NamedTuple):
    name: str
    conversations: Conversations
    reference: Any

    def expected(self, messages: list[dict[str, Any]], **wishes: Any) -> str:
        # What apply_chat_template renders with, which drops a content of None from 5.24 on: DeepSeek asks for it.
        (text,), _ = render_jinja_template(
            [messages],
            chat_template=self.reference.get_chat_template(tools=wishes.get("tools")),
            add_generation_prompt=True,
            **self.reference.special_tokens_map,
            **wishes,
        )
        assert isinstance(text, str)
        return text

    def rendered(self, messages: list[dict[str, Any]]) -> str:
        """Render the prompt that is encoded."""
        return str(self.reference.decode(self.conversations.prompt(messages, None).ids))

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.reference(text, add_special_tokens=False)["input_ids"]
        return ids


@pytest.fixture(scope="module", params=sorted(each.stem for each in TEMPLATES.glob("*.jinja")))
def published(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A template with a tokenizer that has its tokens."""
    directory = tmp_path_factory.mktemp(request.param)
    source = (TEMPLATES / f"{request.param}.jinja").read_text()
    tokenizer = tiny_tokenizers.qwen2()
    names = [*dict.fromkeys(TOKENS.findall(source)), "<bos>", "<eos>"]
    tokenizer.add_tokens([AddedToken(name, normalized=False, special="think" not in name) for name in names])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", chat_template=source
    ).save_pretrained(directory)
    template = read_chat_template(directory)
    assert template
    conversations = Conversations(directory, template, TokenLimits(9_000, 9_000))
    return Published(request.param, conversations, AutoTokenizer.from_pretrained(directory))


@pytest.mark.parametrize("wishes", WISHES, ids=str)
@pytest.mark.parametrize("history", HISTORIES)
def test_it_has_the_ids_that_transformers_gives(published: Published, history: str, wishes: Any) -> None:
    messages = HISTORIES[history]
    variables = {name: value for name, value in wishes.items() if name != "tools"}
    # Templates that refuse a second call, or leave it out, get it in a message of its own.
    known = one_call_each(messages) if published.name in ("llama3_1", "gptoss") else messages
    if published.name == "deepseek_r1_distill":
        known = [as_deepseek_has_it(each) for each in known]
    try:
        text = published.expected(known, **wishes)
    except TemplateError:
        with pytest.raises(PromptError):
            published.conversations.prompt(messages, wishes.get("tools"), **variables)
        return
    found = published.conversations.prompt(messages, wishes.get("tools"), **variables)
    assert found.ids == published.ids(text)
    assert bool(found.reasoning) == text.rstrip().endswith("<think>")
    assert (found.reasoning is None) == text.rstrip().endswith("</think>")


def as_deepseek_has_it(message: dict[str, Any]) -> dict[str, Any]:
    """Write arguments as a text, and no content beside calls."""
    if "tool_calls" not in message:
        return message
    made: dict[str, Any] = copy.deepcopy({**message, "content": None})
    for call in made["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return made


def test_parts_of_a_text_are_given_to_templates_that_take_them(published: Published) -> None:
    """As a caller wrote them: to others the API gives one text."""
    messages = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("one", "two")]}]
    assert published.conversations.takes_parts == (
        published.name in ("gemma3", "glm4moe", "mistral_v3_tekken")
    )
    if published.conversations.takes_parts:
        text = published.expected(messages)
        assert published.conversations.prompt(messages, None).ids == published.ids(text)


def test_calls_and_results_are_all_there(published: Published) -> None:
    """The control of the ids: no template that knows calls is compared with one that left them out."""
    if published.name in KNOWS_NO_CALLS:
        pytest.skip("its template knows no calls")
    text = published.rendered(HISTORIES["two calls"])
    assert all(each in text for each in ("apple 1", "apple 2", "pick 1", "pick 2"))


def test_reasoning_of_the_past_is_left_out_by_the_template(published: Published) -> None:
    """If it could not find the mark, all of it would be in the prompt."""
    text = published.rendered(HISTORIES["reasoning in the text"])
    assert ("long reasoning" in text) == ("</think>" not in published.conversations._template.source)


@pytest.mark.parametrize("field", [each for each in FIELDS if each != "variable"])
def test_no_field_forms_a_special_token(published: Published, field: str) -> None:
    """Whole, in halves around what templates test and cut, and where they look for a mark."""
    names = published.conversations.tokenizer.protected
    special = set(published.reference.convert_tokens_to_ids(names))

    def formed(text: str) -> list[int]:
        messages, tools, _ = attacked(field, text)
        if published.name in KNOWS_NO_CALLS:
            messages = [each for each in messages if each["role"] != "tool" and "tool_calls" not in each]
            del messages[2:-2]
        return [each for each in published.conversations.prompt(messages, tools).ids if each in special]

    clean = formed("a")
    assert clean, "the template's own"
    for attack in ("".join(names), *(f"{name}a{name}" for name in names), " ".join(names) + "</think>a"):
        assert formed(attack) == clean, attack
