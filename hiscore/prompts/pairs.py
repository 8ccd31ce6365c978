"""Rerank requests to an encoder's token ids: query and document as a pair, without a prompt around them."""

from collections.abc import Sequence
from pathlib import Path

from hiscore.prompts.chat import PromptError
from hiscore.prompts.shared_beginning import Prompts
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.pair_template import read_pair_template


class PairPrompts:
    """Makes the pairs of one checkpoint; raises ValueError if its tokenizer makes none."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = PromptTokenizer(checkpoint)
        template = read_pair_template(read_backend(checkpoint))
        if template is None:
            raise ValueError("tokenizer.json has no template for pairs of texts")
        self._template = template

    def ids(self, query: str, documents: Sequence[str], instruction: str | None = None) -> Prompts:
        """Encode the pairs of one query with all documents.

        Raises:
            PromptError: There is an instruction, which an encoder has no place for.
            CannotEncode: A text would become a special token, or the library gives up on one.
        """
        if instruction is not None:
            raise PromptError("'instruction' must not be given: this model reads query and document alone")
        query_ids, *ids = self.tokenizer.encode_texts([query, *documents])
        return Prompts(*self._template.join(query, documents, query_ids, ids))
