"""A question's prompt has the tokens of the whole text, and no field of a caller forms a special token."""

import json
import shutil
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.prompts import tokenizer as tokenizer_module
from hiscore.prompts.chat import PromptError
from hiscore.prompts.decisions import DecisionPrompter, Message, Option, Question
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from tests.support import tiny_tokenizers

LIMITS = TokenLimits(context=4_096, call=100_000)
prompter_of = cache(lambda checkpoint: DecisionPrompter(checkpoint, LIMITS))
STATE = [Message("user", "An order of 12 nails, naïve 苹果.\n\nIt came late: ")]
OPTIONS = [Option("late"), Option("early", "before\nnoon")]
QUESTIONS = [
    Question("choice", "When did it come?", OPTIONS),
    Question("choice", "  Who? ", [Option("I"), Option("you")]),
    Question("score", "How late?", [Option("not"), Option("very")]),
]


@pytest.fixture(autouse=True)
def _has_labels(request: Any) -> None:
    if "checkpoint" in request.fixturenames and "unigram" in request.node.callspec.id:
        pytest.skip("its vocabulary has no digits")


def whole(prompter: DecisionPrompter, state: list[Message], question: Question) -> list[int]:
    """As `ids`, but encoded at once."""
    (ids,) = prompter.tokenizer.encode([prompter.text(state, question)])
    return ids


@pytest.mark.parametrize("count", [1, 3])
def test_every_prompt_has_the_tokens_of_its_whole_text(checkpoint: Path, count: int) -> None:
    prompter = prompter_of(checkpoint)
    made = prompter.ids(STATE, QUESTIONS[:count])
    beginning = (
        [] if AutoTokenizer.from_pretrained(checkpoint).chat_template else prompter.tokenizer.beginning
    )
    for question, item in zip(QUESTIONS, made.prompts.items, strict=False):
        assert [*made.prompts.query, *item] == [*beginning, *whole(prompter, STATE, question)]
        assert item


def test_a_plain_prompt_is_what_transformers_encodes(checkpoint: Path, tmp_path: Path) -> None:
    """With the special tokens that it puts before every text, and none behind."""
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    prompter = DecisionPrompter(tmp_path, LIMITS)
    made = prompter.ids(STATE, QUESTIONS[:1])
    text = prompter.text(STATE, QUESTIONS[0])
    assert text == (
        "An order of 12 nails, naïve 苹果.\n\nIt came late: \n\nQuestion: When did it come?\nA: late\n"
        "B: early - before\nnoon\nAnswer only with the label of the best option.\nAnswer:"
    )
    expected = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    found = [*made.prompts.query, *made.prompts.items[0]]
    assert found == expected[: len(found)]
    # The rest is what such a tokenizer puts behind every text.
    assert len(expected) - len(found) <= 1


def test_the_state_is_encoded_once(checkpoint: Path) -> None:
    prompter = prompter_of(checkpoint)
    made = prompter.ids([Message("user", "word " * 500)], QUESTIONS)
    assert max(map(len, made.prompts.items)) < 150
    assert len(made.prompts.query) > 400


FIELDS: dict[str, Callable[[str], tuple[list[Message], Question]]] = {
    "state": lambda text: ([Message("user", text)], QUESTIONS[0]),
    "earlier message": lambda text: ([Message("assistant", text), *STATE], QUESTIONS[0]),
    "system": lambda text: ([Message("system", text), *STATE], QUESTIONS[0]),
    "instructions": lambda text: (STATE, Question("choice", text, OPTIONS)),
    "option": lambda text: (STATE, Question("choice", "a", [OPTIONS[0], Option(text)])),
    "description": lambda text: (STATE, Question("choice", "a", [OPTIONS[0], Option("a", text)])),
    "level": lambda text: (STATE, Question("score", "a", [Option("a"), Option(text)])),
}


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_forms_a_special_token(checkpoint: Path, field: str) -> None:
    prompter = prompter_of(checkpoint)
    tokenizer = prompter.tokenizer
    writable = {name for name in tokenizer.protected if name.startswith("<0x")} | {"<unk>"}
    special = {tokenizer._plain.token_to_id(name) for name in tokenizer.protected if name not in writable}

    def specials(text: str) -> list[int]:
        state, question = FIELDS[field](text)
        made = prompter.ids(state, [question, question])
        return [each for each in [*made.prompts.query, *made.prompts.items[0]] if each in special]

    clean = specials("a")
    for attack in ["".join(tokenizer.protected), *tokenizer.protected[:4]]:
        assert specials(attack) == clean


@pytest.mark.slow
def test_roles_in_a_row_are_one_message() -> None:
    prompter = DecisionPrompter(resolve(progress=False), LIMITS)
    state = [Message("system", "s"), Message("user", "a"), Message("user", "b")]
    text = prompter.text(state, QUESTIONS[2])
    assert "<|im_start|>user\na\n\nb\n\nQuestion: How late?\n0: not\n1: very\nAnswer only" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    # A conversation that the assistant ended.
    assert "<|im_start|>user\nQuestion: How late?" in prompter.text([Message("assistant", "c")], QUESTIONS[2])


def test_what_cannot_fit_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    prompter = DecisionPrompter(checkpoint, TokenLimits(context=10, call=10_000))
    for state, instructions in (("a" * 1_000, "b"), ("a", "b" * 1_000)):
        with pytest.raises(TooMuchText, match=r"can be 10 tokens \(MAX_CONTEXT\)"):
            prompter.ids([Message("user", state)], [Question("choice", instructions, OPTIONS)])


LONG = [
    Question("choice", f"Which of {index}?", [Option(f"{option} " + "word " * 20) for option in range(20)])
    for index in range(100)
]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["once", "with every prompt"])
def test_too_many_tokens_are_refused_once_they_are_known(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "BATCH_CHARACTERS", 10_000)
    loaded = DecisionPrompter(resolve(progress=False), TokenLimits(1, 1))
    loaded.labels.of("choice", 20)

    def prompter(context: int, call: int) -> tuple[DecisionPrompter, list[int]]:
        """And how many texts it encodes at a time. The tokenizer is loaded once, which takes seconds."""
        made = copy(loaded)
        made._limits = TokenLimits(context, call)
        made.tokenizer = copy(loaded.tokenizer)
        if split != "once":
            made.tokenizer._splits = None
        encoded: list[int] = []
        encode = made.tokenizer.encode_texts
        monkeypatch.setattr(
            made.tokenizer, "encode_texts", lambda texts: (encoded.append(len(texts)), encode(texts))[1]
        )
        return made, encoded

    free, encoded = prompter(10**9, 10**9)
    prompts = free.ids(STATE, LONG).prompts
    assert sum(encoded) >= len(LONG)
    longest = len(prompts.query) + max(map(len, prompts.items))
    total = len(prompts.query) + sum(map(len, prompts.items))
    # The control: what just fits has the same tokens.
    assert prompter(longest, total)[0].ids(STATE, LONG).prompts == prompts
    for context, call, error in (
        (longest - 1, total, rf"{longest} tokens: at most {longest - 1} \(MAX_CONTEXT\)"),
        (longest, total - 1, rf"100 prompts have {total} tokens: at most {total - 1} .*MAX_CALL_TOKENS"),
    ):
        with pytest.raises(TooMuchText, match=error):
            prompter(context, call)[0].ids(STATE, LONG)
    for context, call in ((longest // 2, total), (longest, total // 10)):
        small, encoded = prompter(context, call)
        with pytest.raises(TooMuchText):
            small.ids(STATE, LONG)
        assert sum(encoded) < len(LONG) / 4


def test_what_prompts_share_counts_once() -> None:
    limits = TokenLimits(context=10, call=12)
    alike = [[1, 2, 3, 4, 5, 6, 7, last] for last in range(4)]
    assert limits.gather([0], [alike[:1], alike[1:]]) == alike
    for last in ([1, 2, 3, 4, 5, 6, 9, 9], [9]):
        with pytest.raises(TooMuchText, match="5 prompts have"):
            limits.gather([0], [alike, [last]])


def test_a_token_of_the_template_that_would_become_text_is_an_error(tmp_path: Path) -> None:
    checkpoint = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    (checkpoint / "chat_template.jinja").write_text("{{ '<|im_start|>%s' % messages[-1].content }}")
    with pytest.raises(PromptError, match=r"'<\|im_start\|>' in a way"):
        DecisionPrompter(checkpoint, LIMITS).labels.of("predicate", 2)


@pytest.mark.slow
def test_a_template_that_changes_messages_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(
        resolve(progress=False), directory, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf")
    )
    for template in ("{{ messages[0].content }}{{ messages[0].content }}", "fixed"):
        (directory / "chat_template.jinja").write_text(template)
        with pytest.raises(PromptError, match="as it is"):
            DecisionPrompter(directory, LIMITS).ids(STATE, QUESTIONS)
