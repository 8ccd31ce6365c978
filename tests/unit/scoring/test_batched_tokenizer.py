"""What the batcher asks of the tokenizer: costs, response tensors, and what is recorded."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from hiscore.models.support import CheckpointFacts
from hiscore.scoring.batched_tokenizer import BatchedTokenizer
from hiscore.scoring.encode import plan_request
from hiscore.scoring.encoding_plan import TextRequest
from hiscore.scoring.text_reader import EncodeStats
from hiscore.serving.batched_model import Part
from hiscore.settings import Limits
from hiscore.tokenization.text_encoder import TextEncoder
from hiscore.tokenization.tokenizer import TextTokenizer

FACTS = CheckpointFacts(vocab_size=3, context_length=50, is_classifier=False)


def test_a_batch_from_texts_to_tensors() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(
        backend, TextEncoder(backend), adds_affixes=True, prefix=(), suffix=(), splits=None
    )
    records: list[EncodeStats] = []
    limits = Limits(max_labels=2)
    model = BatchedTokenizer(tokenizer, limits, FACTS, records.append)
    requests = [
        TextRequest("ab", ["c", "ca"], label_token_ids=np.array([1], np.int32)),
        TextRequest("ab", ["c"] * 3, labels=["ab"]),
        TextRequest("ab", ["c"], labels=["a", "b"]),
    ]
    good, bad, one = (plan_request(tokenizer, each, limits, FACTS) for each in requests)
    assert not model.async_launch
    # The bytes to encode: the query with each item, and the labels.
    assert [model.cost(each) for each in (good, bad, one)] == [7, 11, 5]
    assert model.plan().take(good, 0, 0, at_least_one=True) == Part(good, 7)

    batch = model.launch([good, bad, one])
    first, refused, last = batch.finish()
    assert "a label must be exactly one" in refused.message
    # "abc" and "abca" share their first three tokens; a delimiter has the id 0.
    assert {name: values.tolist() for name, values in first.items()} == {
        "input_ids": [[0, 1, 2, 0, 0, 0, 0]],
        "delimiter_indices": [[3, 4, 6]],
        "label_token_ids": [[1]],
    }
    assert last["label_token_ids"].tolist() == [[0, 1]]
    batch.count()
    [stats] = records
    assert stats.seconds > 0
    assert stats == EncodeStats(requests=2, full_encodes=1, seconds=stats.seconds)
