"""Prompts of listwise rerankers: many documents and their query in one, each read at a special token behind it.

Source: modeling.py of jinaai/jina-reranker-v3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiscore.prompts.chat import compiled, render
from hiscore.prompts.families import TEMPLATES
from hiscore.prompts.token_limits import TokenLimits, TooMuchText, Truncation
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import own

NAME = "jina-reranker-v3"
MARKS = "<|embed_token|>", "<|rerank_token|>"
"""The tokens behind a document and behind the query."""
BLOCK, OF_QUERY, OF_DOCUMENT = 125, 512, 2_048
"""Documents of a prompt, tokens of a query and of a document, at most, as published."""


@dataclass(frozen=True)
class Blocks:
    """Prompts with the places at which their documents, and last their query, are read; and which were cut."""

    prompts: list[tuple[list[int], list[int]]]
    cut: list[bool]


class ListwisePrompts:
    def __init__(self, checkpoint: Path) -> None:
        """Read the tokenizer; raises ValueError if it lacks the special tokens."""
        source = (TEMPLATES / f"{NAME.replace('-', '_')}.jinja").read_text()
        self._template = compiled(source)
        self.tokenizer = PromptTokenizer(checkpoint, [source])
        self._read = {ids[0] for ids in self.tokenizer.encode([own(mark) for mark in MARKS]) if len(ids) == 1}
        if len(self._read) < len(MARKS):
            raise ValueError(f"tokenizer.json lacks {' or '.join(MARKS)}")

    def blocks(
        self, query: str, texts: Sequence[str], instruction: str | None, cut: Truncation, limits: TokenLimits
    ) -> Blocks:
        """Divide documents into prompts within the context, cut where that is asked, or raise as `cut_prompts`."""
        limits.check_characters(2 * len(query) + sum(map(len, texts)))
        (asked,), (of_query,) = self._fitted([query], cut.query or cut.prompt, OF_QUERY)
        kept, lengths = self._fitted(texts, cut.document or cut.prompt, OF_DOCUMENT, cut.left)
        around = len(self._ids("", [""] * min(BLOCK, len(kept)), instruction))
        room = free = limits.context - around - 2 * of_query
        blocks: list[list[str]] = [[]]
        for text, length in zip(kept, lengths, strict=True):
            blocks[-1].append(text)
            free -= length
            if len(blocks[-1]) == BLOCK or free <= OF_DOCUMENT:
                blocks.append([])
                free = room
        made = [self._ids(asked, block, instruction) for block in blocks if block]
        places = [[place for place, token in enumerate(ids) if token in self._read] for ids in made]
        were_cut = [asked != query or text != each for text, each in zip(kept, texts, strict=True)]
        return Blocks(list(zip(made, places, strict=True)), were_cut)

    def _fitted(
        self, texts: Sequence[str], asked: int | None, most: int, left: bool = False
    ) -> tuple[Sequence[str], list[int]]:
        """Cut texts if that is asked for; returns their tokens' numbers, too."""
        if asked is not None:
            texts = [self.tokenizer.cut(text, min(asked, most), left) for text in texts]
        lengths = [*map(len, self.tokenizer.encode_texts(texts))]
        if (longest := max(lengths)) > most:
            raise TooMuchText(f"a text has {longest} tokens: at most {most}, unless the request has it cut")
        return texts, lengths

    def _ids(self, query: str, documents: Sequence[str], instruction: str | None) -> list[int]:
        given = {"query": query, "documents": documents, "instruction": instruction or ""}
        return self.tokenizer.encode([render(self._template, **given)])[0]
