"""Requests as the scorer reads them off Triton's tensors."""

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.layout import lay_out_labels
from hiscore.settings import Limits

FACTS = CheckpointFacts(vocab_size=100, context_length=50, is_classifier=False)


class Request:
    def __init__(self, labels: list[int], **options: Any) -> None:
        ids = {"input_ids": [1, 2, 0, 3, 0], "delimiter_indices": [2, 4], "label_token_ids": labels}
        self.tensors = {name: np.array([values], np.int32) for name, values in ids.items()}
        self.options = options

    def parameters(self) -> str:
        return json.dumps(self.options)

    def request_id(self) -> str:
        return "1"

    def requested_output_names(self) -> list[str]:
        return ["scores"]


def test_lengths_of_single_tokens_are_checked_as_others_are(request_reader: ModuleType) -> None:
    reader = request_reader.RequestReader(FACTS, Limits(), lambda prompt: prompt)
    read = reader.read(Request([5, 6], label_lengths="[1, 1]"))
    assert (read.labels.tolist(), read.prompt.tries) == ([5, 6], None)  # as without lengths
    for labels, lengths, says in (
        ([5, 6, 7], "[1, 1]", "'label_lengths' adds up to 2, but 'label_token_ids' holds 3 tokens"),
        ([5], "[1, 1]", "'label_lengths' adds up to 2"),
        ([5, 5], "[1, 1]", "holds 5 more than once"),
    ):
        with pytest.raises(RequestError, match=says):
            reader.read(Request(labels, label_lengths=lengths))


SIZES = -(2**31)


def test_sizes_of_labels_come_in_the_layout_of_the_tokenizer(request_reader: ModuleType) -> None:
    """So every call has the same three tensors, and Triton puts them all in one batch."""
    reader = request_reader.RequestReader(FACTS, Limits(), lambda prompt: prompt)
    for sizes, options in ((np.array([[1, 2]]), {}), (np.array([[1, 2], [3, 9]]), {"normalize": "bytes"})):
        laid_out = lay_out_labels(np.array([5, 6, 7], np.int32), sizes.astype(np.int32))
        read = reader.read(Request(laid_out.tolist(), **options))
        (trie,) = read.prompt.tries
        assert (trie.ids.tolist(), trie.lengths.tolist()) == ([5, 6, 7], [1, 2])
        assert trie.sizes.tolist() == ([3, 9] if options else [1, 1])
    plain = np.array([5, 6], np.int32)
    assert lay_out_labels(plain, np.empty((0, 0), np.int32)) is plain


@pytest.mark.parametrize(
    ("labels", "options", "says"),
    [
        *(
            (labels, {}, f"begins with {SIZES}, and no sizes of labels follow")
            for labels in (
                [SIZES],
                [SIZES, 1],
                [SIZES, 1, 2],
                [SIZES, 0, 0, 5],
                [SIZES, 3, 1, 1, 1, 1, 5],
                [SIZES, -1, -1, 1, 5],
                [SIZES, 1, 2, 1],
                [SIZES, 1, 2, 1, 0, 5],
            )
        ),
        ([SIZES, 1, 2, 1, 1, 5], {}, "adds up to 2, but 'label_token_ids' holds 1 tokens"),
        ([SIZES, 1, 1, 1, 5], {"label_lengths": "[1]"}, "does not go with 'labels'"),
        ([SIZES, 1, 1, 2, 5, 6], {"normalize": "bytes"}, "token ids have none"),
        ([5, SIZES], {}, f"holds {SIZES}: ids of this model are 0 to 99"),
    ],
)
def test_sizes_that_are_none_are_refused(request_reader: ModuleType, labels, options, says: str) -> None:
    reader = request_reader.RequestReader(FACTS, Limits(), lambda prompt: prompt)
    with pytest.raises(RequestError, match=says):
        reader.read(Request(labels, **options))
