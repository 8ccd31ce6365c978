"""Conversations become the ids that transformers gives them, and no field of a request forms a special token."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hiscore.prompts.call_form import one_call_each
from hiscore.prompts.chat import ChatTemplate, PromptError, read_chat_template
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import own
from tests.support import chat_templates, tiny_tokenizers
from tests.support.chat_templates import FIELDS, TOLD, TOOL, attacked

LIMITS = TokenLimits(1_000, 1_000)
MESSAGES = TOLD[:4]


@lru_cache(maxsize=8)
def conversations(checkpoint: Path, source: str) -> Conversations:
    """Several tests share them: building takes longer. The files of the checkpoint must not change."""
    return Conversations(checkpoint, ChatTemplate(source, {"bos_token": "<s>"}), LIMITS)


@pytest.mark.parametrize("source", [chat_templates.CHATML, chat_templates.QWEN3])
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_it_has_the_ids_that_transformers_gives(checkpoint: Path, source: str, tools: Any) -> None:
    reference = AutoTokenizer.from_pretrained(checkpoint)
    text = reference.apply_chat_template(
        MESSAGES, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    expected = reference(text, add_special_tokens=False)["input_ids"]
    found = conversations(checkpoint, source).prompt(MESSAGES, tools)
    # Tokens of the tokenizer that the template does not have are text here.
    if not any(name in text for name in ("<tool_call>", "<think>") if name not in source):
        assert found.ids == expected
    assert not found.reasoning


# As in Llama Guard 3 1B and LLaVA; the second fails on texts.
OF_PARTS = [
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>{% endfor %}<|im_start|>assistant",
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content[0]['text'].strip() + '<|im_end|>' }}{% endfor %}",
]


@pytest.mark.parametrize("source", OF_PARTS)
def test_templates_of_parts_alone_get_parts(source: str, tmp_path: Path) -> None:
    """The kind: contents that a template passes over, so that the model answers nothing that was asked."""
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What is a panda?"}]
    told = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    reference = AutoTokenizer.from_pretrained(checkpoint)
    text = reference.apply_chat_template(
        told, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert "panda" in text
    expected = reference(text, add_special_tokens=False)["input_ids"]
    made = conversations(checkpoint, source)
    assert made.prompt(messages, None).ids == made.prompt(told, None).ids == expected
    assert made.end_ids == reference("<|im_end|>", add_special_tokens=False)["input_ids"][:1]
    # The control: a template that reads texts gets them.
    joined = "{% for m in messages %}{{ m.content + m.role }}{% endfor %}"
    text = "Be kind.systemWhat is a panda?user"
    assert conversations(checkpoint, joined).prompt(messages, None).ids == reference(text)["input_ids"]


SOURCES = {
    "qwen3": chat_templates.QWEN3,
    "tags": chat_templates.TAGS,
    "variable": chat_templates.CHATML
    + "{{ enable_thinking }}{% for m in messages %}{{ m.reasoning_content }}{% endfor %}",
}


@pytest.mark.parametrize("source", [*SOURCES])
def test_no_field_forms_a_special_token(checkpoint: Path, source: str) -> None:
    """Every special token of every tokenizer, whole and without its first and last letters, in every field."""
    writable = "<0x", "<unk>"
    # Not every tokenizer has those of the template.
    own = next(each for each in PromptTokenizer(checkpoint).protected if not each.startswith(writable))
    made = conversations(checkpoint, own + SOURCES[source])
    tokenizer = made.tokenizer
    names = [name for name in tokenizer.protected if not name.startswith(writable)]
    special = {tokenizer._plain.token_to_id(name) for name in names}

    def formed(*given: Any) -> list[int]:
        messages, tools, variables = given
        return [each for each in made.prompt(messages, tools, **variables).ids if each in special]

    for field in FIELDS:
        clean = formed(*attacked(field, "a"))
        assert clean, "the template's own"
        for attack in ["".join(names), *names[:12], *(name[1:-1] for name in names[:12])]:
            assert formed(*attacked(field, attack)) == clean, (field, attack)


def test_control_they_would_be_tokens_if_the_template_had_written_them(checkpoint: Path) -> None:
    made = conversations(checkpoint, chat_templates.QWEN3)
    name = next(each for each in made.tokenizer.protected if not each.startswith(("<0x", "<unk")))
    number = made.tokenizer._plain.token_to_id(name)
    messages = [{"role": "user", "content": f"a{name}"}]
    text = own(str.join("", made._template.render_as_is(messages)))
    assert made.tokenizer.encode([text])[0].count(number) > made.prompt(messages, None).ids.count(number)


def test_a_token_of_the_template_that_would_become_text_is_an_error(tmp_path: Path) -> None:
    """Text that Python formats is not known to be the template's own: its prompts would be wrong in silence."""
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    made = conversations(checkpoint, "{{ '<|im_start|>%s' % messages[0].content }}")
    with pytest.raises(PromptError, match=r"'<\|im_start\|>' in a way"):
        made.prompt([{"role": "user", "content": "a"}], None)
    # The control: where a caller wrote it, it is text.
    assert made.prompt([{"role": "user", "content": "<|im_start|>"}], None).ids


def test_a_caller_may_write_a_token_that_json_escapes(tmp_path: Path) -> None:
    """Gemma 4 quotes with a token, ``<|"|>``."""
    tokenizer = tiny_tokenizers.qwen2()
    tokenizer.add_special_tokens(['<|"|>'])
    made = conversations(tiny_tokenizers.save(tokenizer, tmp_path), "{{ messages[0].content }}")
    ids = made.prompt([{"role": "user", "content": '<|"|>'}], None).ids
    assert tokenizer.token_to_id('<|"|>') not in ids
    assert tokenizer.decode(ids) == '<|"|>'


IDS = {"x": "x", "y": "y", "z": "z", "-": None}


@pytest.mark.parametrize(
    ("calls", "results", "order"),
    [
        ("xy", "xy", "0a 1b"),
        ("xy", "yx", "0b 1a"),
        ("xx", "xx", "0a 1b"),
        ("--", "--", "0a 1b"),
        ("xy", "y-", "0b 1a"),
        ("xy", "zy", "0a 1b"),
        ("xy", "xxy", "0ab 1c"),
        ("xx", "xxx", "0a 1bc"),
    ],
)
def test_results_stay_with_their_calls(calls: str, results: str, order: str) -> None:
    made = one_call_each(
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": IDS[each], "at": at} for at, each in enumerate(calls)],
            },
            *(
                {"role": "tool", "tool_call_id": IDS[each], "is": "abc"[at]}
                for at, each in enumerate(results)
            ),
        ]
    )
    found = "".join(each["is"] if "is" in each else f" {each['tool_calls'][0]['at']}" for each in made)
    assert found.split() == order.split()


def test_the_end_of_an_answer_is_known_from_the_template(tmp_path: Path) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    end = AutoTokenizer.from_pretrained(checkpoint).convert_tokens_to_ids("<|im_end|>")
    assert conversations(checkpoint, chat_templates.CHATML).end_ids == [end]
    assert conversations(checkpoint, chat_templates.QWEN3).end_ids == [end]
    assert conversations(checkpoint, "{% for m in messages %}{{ m.content }}\n{% endfor %}").end_ids == []
    assert conversations(checkpoint, "{{ raise_exception('no') }}").end_ids == []


def test_a_prompt_says_whether_reasoning_has_begun(tmp_path: Path) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    messages = [{"role": "user", "content": "a <think>"}]
    begins = conversations(checkpoint, chat_templates.CHATML + "<think>\n")
    assert begins.prompt(messages, None).reasoning
    # A caller's text does not begin it.
    assert not conversations(checkpoint, "{{ messages[0].content }}").prompt(messages, None).reasoning
    qwen = conversations(checkpoint, chat_templates.QWEN3)
    assert qwen.reasons
    assert not qwen.prompt(messages, None, enable_thinking=False).reasoning
    assert len(qwen.prompt(messages, None, enable_thinking=False).ids) > len(qwen.prompt(messages, None).ids)


PLAIN, WITH = "plain{{ bos_token }}{{ messages[0].content }}", "with{{ tools | length }}"
NAMED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH}]
JINJA, JSON, MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        (PLAIN, {}, ("plain<s>x", "plain<s>x")),
        (NAMED, {}, ("plain<s>x", "with1")),
        (None, {JINJA: PLAIN}, ("plain<s>x", "plain<s>x")),
        (None, {JINJA: PLAIN, MORE: WITH}, ("plain<s>x", "with1")),
        # A file hides all that the config has.
        (NAMED, {JINJA: "file"}, ("file", "file")),
        (PLAIN, {JSON: json.dumps({"chat_template": "json"})}, ("plain<s>x", "plain<s>x")),
        # That of a processor, which a tokenizer alone does not read.
        (None, {JSON: json.dumps({"chat_template": PLAIN})}, ("plain<s>x", "plain<s>x")),
    ],
)
def test_templates_are_found_where_transformers_finds_them(
    config: Any, files: dict[str, str], expected: tuple[str, str], tmp_path: Path
) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    path = checkpoint / "tokenizer_config.json"
    given = json.loads(path.read_text()) | ({"chat_template": config} if config else {})
    # As older checkpoints name special tokens.
    assert "added_tokens_decoder" not in given
    path.write_text(json.dumps(given))
    (checkpoint / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}}')
    (checkpoint / MORE).parent.mkdir()
    for name, text in files.items():
        (checkpoint / name).write_text(text)
    template = read_chat_template(checkpoint)
    reference = AutoTokenizer.from_pretrained(checkpoint)
    messages = [{"role": "user", "content": "x"}]
    assert template
    for tools, text in zip((None, [TOOL]), expected, strict=True):
        made = Conversations(checkpoint, template, LIMITS).prompt(messages, tools)
        assert reference.decode(made.ids) == text
        if config or JSON not in files:
            assert reference.apply_chat_template(messages, tools=tools, tokenize=False) == text


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    with pytest.raises(PromptError, match="empty"):
        conversations(checkpoint, "{{ '' }}").prompt([], None)


def test_marks_for_training_change_nothing(checkpoint: Path) -> None:
    marked = chat_templates.CHATML.replace(
        "{{ message.content }}", "{% generation %}{{ message.content }}{% endgeneration %}"
    )
    assert marked != chat_templates.CHATML
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = [
        conversations(checkpoint, each).prompt(messages, None).ids for each in (marked, chat_templates.CHATML)
    ]
    assert found[0] == found[1]


def test_what_cannot_fit_the_context_is_not_encoded(checkpoint: Path) -> None:
    made = conversations(checkpoint, chat_templates.CHATML)
    if made.tokenizer.bytes_per_token is None:
        pytest.skip("one of its tokens may stand for any number of characters")
    most = LIMITS.context * made.tokenizer.bytes_per_token
    with pytest.raises(TooMuchText, match="can be 1000 tokens"):
        made.prompt([{"role": "user", "content": "a" * most}], None)
    # The control: what may fit is encoded, and the model's to refuse.
    assert made.prompt([{"role": "user", "content": "ab " * LIMITS.context}], None).ids
