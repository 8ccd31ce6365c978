"""A tokenizer for prompts that mix a template with the texts of callers.

Only a whole prompt, encoded at once, has the tokens that the model was trained on. But then a caller could write
``<|im_start|>`` and speak for the system. So the tokens that no caller may write, the *protected* ones, have
secret names here. Those that a template wrote itself are replaced by these names, and a caller's ``<|im_start|>``
is text like any other.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hiscore.prompts.chat import PromptError
from hiscore.prompts.shared_beginning import common_length
from hiscore.prompts.token_limits import TokenLimits
from hiscore.prompts.tracked_text import TrackedText
from hiscore.tokenization.file import read_state
from hiscore.tokenization.panics import CannotEncode, panics_refused
from hiscore.tokenization.safe_splits import split_rule
from hiscore.tokenization.text_encoder import TextEncoder, any_of, by_characters
from hiscore.tokenization.token_bytes import BYTE_TOKEN
from hiscore.tokenization.token_length import max_bytes_per_token

# Between two looks at how many tokens there are: some tenths of a second.
BATCH_CHARACTERS = 2**20
PIPED = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)


class PromptTokenizer:
    """A checkpoint's tokenizer, from its tokenizer.json.

    Protected are the tokens that the file calls special, those like ``<|name|>``, and those in brackets, such as
    ``<think>``, that occur in a template. Other added tokens, such as runs of spaces, are parts of ordinary text.
    """

    def __init__(self, checkpoint: Path, templates: Iterable[str] = ()) -> None:
        state = read_state(checkpoint)
        added: list[dict[str, Any]] = state["added_tokens"]
        self._plain = Tokenizer.from_str(json.dumps(state))
        sources = "".join(templates)
        self.protected = [each["content"] for each in added if _is_protected(each, sources)]
        self.special = {each["content"] for each in added if each["special"]}
        secret = secrets.token_hex(8)
        names = {content: f"\ue000{secret}.{index}\ue001" for index, content in enumerate(self.protected)}
        for each in added:
            each["content"] = names.get(each["content"], each["content"])
        _rename_pieces(state["model"], names)
        self._tokenizer = Tokenizer.from_str(json.dumps(state))
        self._encoder = TextEncoder(self._tokenizer)
        # A renamed token that the model's own vocabulary knows under its true name has got another id.
        ids = {self._tokenizer.token_to_id(each["content"]): each["id"] for each in added}
        self._true_ids = {renamed: true for renamed, true in ids.items() if renamed != true}
        self._forbidden = _ids_of_protected(self._tokenizer, self.protected, state["model"])
        self._splits = split_rule(self._tokenizer)
        self.bytes_per_token = max_bytes_per_token(self._tokenizer)
        self._names = names
        self._protected_text = any_of(names)

    def reveal(self, prompt: str) -> str:
        """Put the tokens that a template wrote itself under their secret names; there are none in plain text."""
        if not isinstance(prompt, TrackedText):
            return prompt
        return prompt.rename(self._protected_text, lambda match: self._names[match[0]])

    def check_own(self, prompt: TrackedText, given: Callable[[], str] = str) -> None:
        """Check that a template wrote the protected tokens itself that callers' texts, `given`, have not."""
        found = prompt.find_callers(self._protected_text)
        texts = given() if found else ""
        if lost := [each for each in found if json.dumps(each, ensure_ascii=False)[1:-1] not in texts]:
            raise PromptError(
                f"the template writes {min(lost)!r} in a way that cannot be told from a caller's"
            )

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Encode rendered templates. No special tokens are added."""
        return self.encode_texts([self.reveal(prompt) for prompt in prompts])

    @panics_refused()
    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode callers' texts as they are. No special tokens are added."""
        rows: list[list[int]] = []
        # The library's own results are ten times as large as the ids.
        for batch in by_characters(texts, BATCH_CHARACTERS):
            rows += map(self._checked, self._encoder.encode(batch))
        return rows

    @property
    def splits(self) -> bool:
        """True if a common beginning is encoded once for all prompts, as far as the text allows."""
        return self._splits is not None

    def encode_continued(
        self, head: str, tails: Sequence[str], limits: TokenLimits
    ) -> tuple[list[int], list[list[int]]]:
        """Encode prompts that begin with `head`, as `encode` would each whole prompt.

        Where the tokenizer allows, all but the end of `head` is encoded only once.

        Returns:
            The ids that were encoded once, and the ids of each prompt behind them.
        """
        revealed = self.reveal(head)
        split = self._splits.last(revealed) if self._splits else None
        size = len(revealed) + len(revealed[split or 0 :]) * len(tails) + sum(map(len, tails))
        limits.check_characters(size)
        rows = [revealed[split or 0 :] + self.reveal(tail) for tail in tails]
        beginning = revealed[: split or 0]
        limits.check_bytes(beginning, rows, self.bytes_per_token)
        once: list[int] = []
        if self._splits and beginning:
            (once,) = self.encode_texts([beginning])
            rows = [self._splits.second(row) for row in rows]
        return once, limits.gather(once, map(self.encode_texts, by_characters(rows, BATCH_CHARACTERS)))

    def encode_alike(self, prompts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Encode prompts that may begin alike, as `encode` would each; their common beginning only once."""
        revealed = [self.reveal(prompt) for prompt in prompts]
        shared = revealed[0][: common_length(revealed)]
        split = (self._splits.last(shared) if self._splits else None) or 0
        if self._splits is None or not split:
            return [], self.encode_texts(revealed)
        seconds = [self._splits.second(prompt[split:]) for prompt in revealed]
        once, *ids = self.encode_texts([shared[:split], *seconds])
        return once, ids

    @property
    @panics_refused()
    def beginning(self) -> list[int]:
        """The special tokens with which the tokenizer begins every text."""
        encoding = self._plain.encode("a")
        added = takewhile(lambda pair: pair[1], zip(encoding.ids, encoding.special_tokens_mask, strict=True))
        return [number for number, _ in added]

    @panics_refused()
    def cut(self, text: str, tokens: int, left: bool = False) -> str:
        """Cut a text to the first whole characters that are so many tokens at most, or with `left` to the last."""
        text = self.shortened(text, tokens, left) if tokens else ""
        # What is left of a text may have more tokens than it had as a part.
        while len(offsets := self._tokenizer.encode(text, add_special_tokens=False).offsets) > tokens:
            # Tokens are parts of one character where one begins before the other ends.
            if left:
                text = text[max(offsets[-tokens][0], offsets[-tokens - 1][1], 1) :]
            else:
                text = text[: min(offsets[tokens - 1][1], offsets[tokens][0], len(text) - 1)]
        return text

    def shortened(self, text: str, tokens: int, left: bool = False) -> str:
        """Drop the end of a text far longer than so many tokens, or with `left` the beginning, unencoded."""
        if self.bytes_per_token is None or not tokens:
            return text
        # Twice what they can be, so that the tokens at the new end are none of them.
        most = 2 * tokens * self.bytes_per_token
        return text if len(text) <= most else text[-most:] if left else text[:most]

    def token_at_start(self, text: str) -> int | None:
        """The protected token with which a template's text begins, or None."""
        found = self._protected_text.match(text)
        number: int | None = self._plain.token_to_id(found[0]) if found else None
        return number

    def token(self, number: int) -> str | None:
        found: str | None = self._plain.id_to_token(number)
        return found

    def _checked(self, ids: list[int]) -> list[int]:
        if not self._forbidden.keys().isdisjoint(ids):
            content = next(self._forbidden[each] for each in ids if each in self._forbidden)
            raise CannotEncode(f"it would become the special token {content!r}")
        true_ids = self._true_ids
        return [true_ids.get(each, each) for each in ids]


def _is_protected(token: dict[str, Any], templates: str) -> bool:
    """Check whether an added token is special, like ``<|name|>``, or in brackets and part of a template."""
    content: str = token["content"]
    if token["special"] or PIPED.fullmatch(content):
        return True
    return bool(MARKUP.fullmatch(content)) and content in templates


def _rename_pieces(model: dict[str, Any], names: dict[str, str]) -> None:
    """Give protected tokens (`names`) their secret names in tokenizer.json's `model`, where text could spell them.

    The merges of BPE name their results, so its vocabulary stays as it is.
    """
    kept = BYTE_TOKEN.fullmatch if model.get("byte_fallback") else lambda content: None
    renamed = {content: name for content, name in names.items() if not kept(content)}
    if model["type"] == "Unigram":
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
    elif model["type"] in ("WordPiece", "WordLevel"):
        model["vocab"] = {renamed.get(piece, piece): number for piece, number in model["vocab"].items()}
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])


def _ids_of_protected(
    tokenizer: Tokenizer, protected: Sequence[str], model: dict[str, Any]
) -> dict[int, str]:
    """Map ids of the model's own vocabulary to protected tokens, but for those that any text may give."""
    found = {tokenizer.token_to_id(content): content for content in protected}
    ordinary = {model.get("unk_token")}
    if model["type"] == "Unigram" and model.get("unk_id") is not None:
        ordinary.add(model["vocab"][model["unk_id"]][0])
    if model.get("byte_fallback"):
        ordinary |= {content for content in protected if BYTE_TOKEN.fullmatch(content)}
    return {
        number: content for number, content in found.items() if number is not None and content not in ordinary
    }
