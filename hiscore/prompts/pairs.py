"""Rerank requests to a cross-encoder's token ids: query and document as a pair, no prompt around them."""

import sys
from pathlib import Path

from hiscore.prompts.chat import read_json
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
        self.template = template
        longest = read_json(checkpoint / "tokenizer_config.json").get("model_max_length")
        # Where none is known, transformers writes 1e30.
        self.longest = int(longest) if longest else sys.maxsize
