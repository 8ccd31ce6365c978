"""The texts under which a question's options stand, as tokens where the model's answer begins."""

import reprlib
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
    """The labels of one question; `ids` are the tokens of each, all different."""

    texts: Sequence[str]
    ids: Sequence[tuple[int, ...]]


class AnswerLabels:
    """Finds labels, once for each kind of question, by the end of any rendered prompt: all prompts end alike."""

    def __init__(self, tokenizer: PromptTokenizer, prompt: str) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt

    def of(self, kind: Kind, options: int) -> Labels:
        """Find the labels of a question, of one token each if there are such, or raise `PromptError`."""
        fits = options <= len(FIXED[kind])
        texts = FIXED[kind][:options] if fits else PAIRS
        for is_several in (False, True):
            for found in self._fixed[kind] if fits else self._pairs:
                usable = [text for text in texts if text in found and (is_several or len(found[text]) == 1)]
                usable = usable[:options]
                if len(usable) == options:
                    return Labels(usable, [found[text] for text in usable])
        raise PromptError(
            f"this model cannot answer questions of type '{kind}' with {options} options: not all of their labels "
            f"{texts[0]!r} to {texts[-1]!r} are tokens of their own where its answer begins"
        )

    def of_texts(self, texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Encode options' own texts as answers, or raise `PromptError` for one that is no answer."""
        either = [self._behind(texts, space) for space in self._spaces]
        for found in either:
            if all(found.values()):
                return found
        text = reprlib.repr(next(text for text in texts if not either[0][text]))
        raise PromptError(f"the option {text} is no answer: it is empty, or changes the tokens before it")

    @cached_property
    def _fixed(self) -> dict[Kind, list[dict[str, tuple[int, ...]]]]:
        return {kind: [self._found(texts, space) for space in self._spaces] for kind, texts in FIXED.items()}

    @cached_property
    def _pairs(self) -> list[dict[str, tuple[int, ...]]]:
        return [self._found(PAIRS, space) for space in self._spaces]

    @property
    def _spaces(self) -> tuple[str, str]:
        """Separators between prompt and label, the likelier first: after a word, that is a space."""
        joined = self._prompt[-1:].isspace() or self._prompt.endswith(tuple(self._tokenizer.protected))
        return ("", " ") if joined else (" ", "")

    def _found(self, texts: Sequence[str], space: str) -> dict[str, tuple[int, ...]]:
        """Find the texts that add tokens to the prompt, each others."""
        found: dict[tuple[int, ...], str] = {}
        for text, ids in self._behind(texts, space).items():
            found.setdefault(ids, text)
        return {text: ids for ids, text in found.items() if ids}

    def _behind(self, texts: Sequence[str], space: str) -> dict[str, tuple[int, ...]]:
        """Encode texts behind the prompt: the tokens that each adds, none if it changes the prompt's own."""
        prompt = self._prompt
        ids, *continued = self._tokenizer.encode([prompt, *(prompt + space + text for text in texts)])
        pairs = zip(texts, continued, strict=True)
        return {
            text: tuple(longer[len(ids) :]) if text and longer[: len(ids)] == ids else ()
            for text, longer in pairs
        }
