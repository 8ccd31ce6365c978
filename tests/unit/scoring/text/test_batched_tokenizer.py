"""What the batcher asks of the tokenizer: costs, response tensors, and what is recorded."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hiscore.batching.batched_model import Part
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests.layout import unpack
from hiscore.scoring.text import batched_tokenizer
from hiscore.scoring.text.batched_tokenizer import COUNTERS, MAX_BATCH_BYTES, BatchedTokenizer
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.text_encoder import TextEncoder
from hiscore.tokenization.tokenizer import TextTokenizer
from tests.support.encoding import limits_of

FACTS = CheckpointFacts(vocab_size=3, context_length=50, is_classifier=False)


def letters() -> TextTokenizer:
    """A token for each letter; texts cannot be split."""
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTokenizer(backend, TextEncoder(backend), adds_affixes=True, prefix=(), suffix=(), splits=None)


def test_a_batch_from_texts_to_tensors() -> None:
    records: list[dict[str, int]] = []
    model = BatchedTokenizer(letters(), Limits(), FACTS, lambda **counts: records.append(counts))
    requests = [
        TextRequest("ab", ["c", "ca"], label_token_ids=np.array([1], np.int32)),
        TextRequest("ab", ["c"] * 3, labels=["a", "a"]),
        TextRequest("ab", ["c"], labels=["a", "b"]),
    ]
    good, bad, one = map(model.job, requests)
    assert not model.async_launch
    # The bytes to encode: the query with each item, and the labels.
    assert [model.cost(each) for each in (good, bad, one)] == [7, 11, 5]
    assert model.plan().take(good, 0, 0, at_least_one=True) == Part(good, 7)

    (batch,) = model.launch([good, bad, one])
    first, refused, last = batch.finish()
    assert "are the same token" in refused.message
    # "abc" and "abca" share their first three tokens; a delimiter has the id 0.
    assert {name: values.tolist() for name, values in first.items()} == {
        "input_ids": [[0, 1, 2, 0, 0, 0, 0]],
        "delimiter_indices": [[3, 4, 6]],
        "label_token_ids": [[1]],
    }
    assert last["label_token_ids"].tolist() == [[0, 1]]
    batch.count()
    assert records == [{
        "hiscore_tokenized_calls_total": 2, "hiscore_full_encodes_total": 1, "hiscore_tokenizer_batches_total": 1
    }]  # fmt: skip
    assert records[0].keys() == COUNTERS.keys()


def test_a_large_text_is_a_batch_of_its_own_and_planned_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan it takes long, and the thread that reads requests has others to read."""
    records: list[dict[str, int]] = []
    model = BatchedTokenizer(letters(), limits_of(30), FACTS, lambda **counts: records.append(counts))
    requests = [
        TextRequest("ab", ["c"], labels=["a"]),
        TextRequest("abcabcab", ["c", "a", "b"], labels=["a"]),
        TextRequest("abcabcab", ["c", "a", "b", "c"], labels=["a"]),  # 32 bytes of the query alone
    ]
    monkeypatch.setattr(batched_tokenizer, "MAX_ALONE_BYTES", 4)
    jobs = [model.job(each) for each in requests]
    assert [isinstance(job, TextRequest) for job in jobs] == [False, True, True]
    assert [model.cost(job) for job in jobs] == [4, MAX_BATCH_BYTES, MAX_BATCH_BYTES]
    first, second, refused = next(model.launch(jobs)).finish()
    found = [
        unpack(each["input_ids"][0], each["delimiter_indices"][0]).tokens.tolist() for each in (first, second)
    ]
    assert found == [[0, 1, 2], [*[0, 1, 2] * 2, 0, 1, 2, 0, 1]]
    assert "must be encoded again with each of 4 items, 32 bytes in all" in refused.message
    with pytest.raises(RequestError, match="hold 31 bytes"):
        model.job(TextRequest("a" * 29, ["c"], labels=["a"]))
