import numpy as np
import pytest

from hiscore_client import ScoreResult, ServerFault, Usage
from hiscore_client.results import merge_chunks


def chunk(items: int, labels: int, prompt_tokens: int = 0) -> ScoreResult:
    return ScoreResult(np.full((items, labels), prompt_tokens, np.float32), Usage(prompt_tokens, 1), "id/0")


def test_chunks_with_different_numbers_of_labels_are_a_fault() -> None:
    with pytest.raises(ServerFault, match=r"\[2, 3\] columns for one call"):
        merge_chunks([chunk(1, 3), chunk(1, 2)], "id")
