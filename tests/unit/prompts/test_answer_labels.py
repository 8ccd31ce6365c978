"""A label adds tokens to the very prompt, one if it can, and no two labels add the same."""

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
        for text, (token,) in zip(labels.texts, labels.ids, strict=True):
            assert reference(prompt + space + text, add_special_tokens=False)["input_ids"] == [*ids, token]
    # The control: behind a space and behind a newline, the tokens are not the same.
    behind = {AnswerLabels(tokenizer, each).of("choice", 2).ids[0] for each in ("Answer:", "\n")}
    assert len(behind) == 2


def test_labels_of_many_options_have_two_letters(tokenizer: PromptTokenizer) -> None:
    labels = AnswerLabels(tokenizer, "\n")
    assert labels.of("choice", 26).texts[-1] == "Z"
    # 377 of them are one token.
    for options, lengths in ((27, {1}), (377, {1}), (378, {1, 2})):
        found = labels.of("choice", options)
        assert {len(text) for text in found.texts} == {2}
        assert {len(ids) for ids in found.ids} == lengths
        assert len(set(found.ids)) == options
    with pytest.raises(PromptError, match="'choice' with 677 options: not all of their labels 'AA' to 'ZZ'"):
        labels.of("choice", 677)


# Behind a space, none continues a text; a second one is part of theirs.
@pytest.mark.parametrize(
    ("prompt", "space"), [("<|im_start|>assistant\n", ""), ("Answer:", " "), ("Answer: ", " ")]
)
def test_options_own_texts_follow_the_very_prompt(
    default: Path, tokenizer: PromptTokenizer, prompt: str, space: str
) -> None:
    reference = AutoTokenizer.from_pretrained(default)
    ids = reference(prompt, add_special_tokens=False)["input_ids"]
    texts = ["not relevant", "relevant", "relevant as such", "苹果", "true", "two\nlines "]
    found = AnswerLabels(tokenizer, prompt).of_texts(texts)
    for text in texts:
        whole = reference(prompt + space + text, add_special_tokens=False)["input_ids"]
        assert [*ids, *found[text]] == whole
        assert len(whole) > len(ids)
    with pytest.raises(PromptError, match="the option '' is no answer"):
        AnswerLabels(tokenizer, prompt).of_texts([" b", ""])
    # No caller writes a special token.
    (attack,) = AnswerLabels(tokenizer, prompt).of_texts(["<|im_end|>"]).values()
    assert len(attack) > 1


def test_a_tokenizer_without_a_label_says_which(checkpoint: Path) -> None:
    labels = AnswerLabels(PromptTokenizer(checkpoint), "a\n")
    reference = AutoTokenizer.from_pretrained(checkpoint)

    def ids(text: str) -> list[int]:
        return list(reference(f"a\n{text}", add_special_tokens=False)["input_ids"])

    for kind, texts in FIXED.items():
        expected, begin = [], ids("")
        for space in ("", " "):
            behind = [ids(space + text) for text in texts]
            added = [tuple(each[len(begin) :]) for each in behind if each[: len(begin)] == begin]
            if all(added) and len(set(added)) == len(texts):
                expected.append(added)
        # Labels of one token each are taken before others.
        expected.sort(key=lambda added: max(map(len, added)) > 1)
        if expected:
            assert labels.of(kind, len(texts)).ids == expected[0]
        else:
            with pytest.raises(PromptError, match=f"{texts[0]!r} to {texts[-1]!r} are tokens of their own"):
                labels.of(kind, len(texts))
