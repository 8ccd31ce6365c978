"""A label adds exactly one token to the very prompt, and no two labels add the same."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.prompts.answer_labels import FIXED, AnswerLabels
from hiscore.prompts.chat import PromptError
from hiscore.prompts.tokenizer import PromptTokenizer


@pytest.fixture(scope="module")
def default() -> Path:
    return resolve(progress=False)


@pytest.fixture(scope="module")
def tokenizer(default: Path) -> PromptTokenizer:
    return PromptTokenizer(default)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "space"), [("<|im_start|>assistant\n", ""), ("Answer:", " "), ("b<|im_end|>", "")]
)
def test_labels_are_what_follows_the_very_prompt(
    default: Path, tokenizer: PromptTokenizer, prompt: str, space: str
) -> None:
    reference = AutoTokenizer.from_pretrained(default)
    ids = reference(prompt, add_special_tokens=False)["input_ids"]
    for kind, options in (("predicate", 2), ("choice", 26), ("choice", 27), ("choice", 255), ("score", 10)):
        labels = AnswerLabels(tokenizer, prompt).of(kind, options)
        assert len(set(labels.ids)) == len(set(labels.texts)) == options
        if kind == "score":
            space = ""  # In this model's texts, a digit is a token of its own behind a space of its own.
        for text, token in zip(labels.texts, labels.ids, strict=True):
            assert reference(prompt + space + text, add_special_tokens=False)["input_ids"] == [*ids, token]
    # The control: behind a space and behind a newline, the tokens are not the same.
    behind = {AnswerLabels(tokenizer, each).of("choice", 2).ids[0] for each in ("Answer:", "\n")}
    assert len(behind) == 2


def test_labels_of_many_options_have_two_letters(tokenizer: PromptTokenizer) -> None:
    labels = AnswerLabels(tokenizer, "\n")
    assert labels.of("choice", 26).texts[-1] == "Z"
    assert {len(text) for text in labels.of("choice", 27).texts} == {2}
    with pytest.raises(PromptError, match="a question has 500 options: at most 377 with this model"):
        labels.of("choice", 500)


def test_a_tokenizer_without_a_label_says_which(checkpoint: Path) -> None:
    labels = AnswerLabels(PromptTokenizer(checkpoint), "a\n")
    reference = AutoTokenizer.from_pretrained(checkpoint)

    def ids(text: str) -> list[int]:
        return list(reference(f"a\n{text}", add_special_tokens=False)["input_ids"])

    for kind, texts in FIXED.items():
        expected = []
        for space in ("", " "):
            behind = [ids(space + text) for text in texts]
            if all(each[:-1] == ids("") for each in behind) and len(set(map(tuple, behind))) == len(texts):
                expected.append([each[-1] for each in behind])
        if expected:
            assert labels.of(kind, len(texts)).ids == expected[0]
        else:
            with pytest.raises(PromptError, match=f"{texts[0]!r} to {texts[-1]!r} are not one token each"):
                labels.of(kind, len(texts))
