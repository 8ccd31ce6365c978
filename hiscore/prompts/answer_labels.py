"""The texts under which a question's options stand: each is one token where the model's answer begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from string import ascii_uppercase, digits
from typing import Literal, TypeAlias

from hiscore.prompts.chat import PromptError
from hiscore.prompts.tokenizer import PromptTokenizer

Kind: TypeAlias = Literal["predicate", "choice", "score"]
"""Kinds of questions: is it so, which of these, how much."""

FIXED: Mapping[Kind, Sequence[str]] = {
    "predicate": ("Yes", "No"),
    "choice": tuple(ascii_uppercase),
    "score": tuple(digits),
}
PAIRS = tuple(map("".join, product(ascii_uppercase, repeat=2)))


@dataclass(frozen=True)
class Labels:
    """The labels of one question; `ids` are their tokens, all different."""

    texts: Sequence[str]
    ids: Sequence[int]


class AnswerLabels:
    """Finds labels, once for each kind of question, by the end of any rendered prompt: all prompts end alike."""

    def __init__(self, tokenizer: PromptTokenizer, prompt: str) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt

    def of(self, kind: Kind, options: int) -> Labels:
        """Find the labels of a question.

        Raises:
            PromptError: The model has none, or too few.
        """
        fixed = FIXED[kind]
        for found in self._fixed[kind] if options <= len(fixed) else self._pairs:
            texts = fixed[:options] if options <= len(fixed) else list(found)[:options]
            if len(texts) == options and found.keys() >= set(texts):
                return Labels(texts, [found[text] for text in texts])
        if options <= len(fixed):
            raise PromptError(
                f"this model cannot answer questions of type '{kind}' with {options} options: their labels "
                f"{fixed[0]!r} to {fixed[options - 1]!r} are not one token each where its answer begins"
            )
        most = max(len(fixed), *map(len, self._pairs))
        raise PromptError(
            f"a question has {options} options: at most {most} with this model, whose tokenizer has no more "
            "labels of two letters that are one token"
        )

    @cached_property
    def _fixed(self) -> dict[Kind, list[dict[str, int]]]:
        return {kind: [self._found(texts, space) for space in self._spaces] for kind, texts in FIXED.items()}

    @cached_property
    def _pairs(self) -> list[dict[str, int]]:
        return [self._found(PAIRS, space) for space in self._spaces]

    @property
    def _spaces(self) -> tuple[str, str]:
        """Separators between prompt and label, the likelier first: after a word, that is a space."""
        joined = self._prompt[-1:].isspace() or self._prompt.endswith(tuple(self._tokenizer.protected))
        return ("", " ") if joined else (" ", "")

    def _found(self, texts: Sequence[str], space: str) -> dict[str, int]:
        """Find the texts that add exactly one token to the prompt, each another one."""
        prompt = self._prompt
        ids, *continued = self._tokenizer.encode([prompt, *(prompt + space + text for text in texts)])
        found: dict[int, str] = {}
        for text, longer in zip(texts, continued, strict=True):
            if len(longer) == len(ids) + 1 and longer[:-1] == ids:
                found.setdefault(longer[-1], text)
        return {text: token for token, text in found.items()}
