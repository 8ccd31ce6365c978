"""Rerank requests to a cross-encoder's token ids: query and document as a pair, no prompt around them."""

from collections.abc import Sequence
from pathlib import Path

from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.pair_template import read_pair_template


class PairPrompts:
    """Makes the pairs of one checkpoint; raises ValueError if its tokenizer makes none.

    Args:
        prompt: The text that stands before queries, for which a request's instruction may stand; empty: none may.
        label_ids: The labels, by their tokens; none of a classifier.
    """

    def __init__(self, checkpoint: Path, prompt: str = "", label_ids: Sequence[int] = ()) -> None:
        self.prompt, self.label_ids = prompt, label_ids
        self.label_lengths: Sequence[int] | None = None
        self.tokenizer = PromptTokenizer(checkpoint)
        template = read_pair_template(read_backend(checkpoint))
        if template is None:
            raise ValueError("tokenizer.json has no template for pairs of texts")
        self.template = template

    def characters(self, queries: Sequence[str], documents: Sequence[str]) -> int:
        """Estimate the characters that are encoded: each query's once."""
        return sum(map(len, documents))
