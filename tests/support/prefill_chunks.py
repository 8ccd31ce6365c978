"""Parts of prompts, as the scheduler cuts them."""

from collections.abc import Sequence

import numpy as np

from hiscore.decoding.interface.worker import PrefillChunk


def chunk(pages: Sequence[int], start: int, end: int) -> PrefillChunk:
    """Tokens [start, end) of a prompt that ends there, in these pages of staging."""
    tokens = np.zeros(end - start, np.int32)
    return PrefillChunk(0, tokens, start, np.array(pages, np.int32), np.empty(0, np.int32), is_last=True)
