"""The scorer's own way from texts to token ids: that of the `tokenizer` model, one request at a time."""

from pathlib import Path

import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.encoding_plan import TextRequest
from hiscore.scoring.text_reader import COUNTERS, EncodeStats, TextReader
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from tests.support import tiny_tokenizers
from tests.support.encoding import encode_requests

FACTS = CheckpointFacts(vocab_size=1_000, context_length=500, is_classifier=False)


@pytest.fixture
def records() -> list[EncodeStats]:
    return []


@pytest.fixture
def reader(tmp_path: Path, records: list[EncodeStats]) -> TextReader:
    tokenizer = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.smollm2(), tmp_path))
    return TextReader(tokenizer, Limits(max_items=3), FACTS, records.append)


def test_it_gives_what_the_tokenizer_gives_and_counts_it(
    reader: TextReader, records: list[EncodeStats]
) -> None:
    requests = [
        TextRequest("Is this a fruit? It is", [" an apple", " a hammer"], labels=[" Yes", " No"]),
        TextRequest("one_word", ["s", " or two"], label_token_ids=np.array([5], np.int32), item_first=True),
    ]
    expected = encode_requests(reader.tokenizer, requests, reader.limits, FACTS)
    for request, wanted in zip(requests, expected, strict=True):
        assert not isinstance(wanted, RequestError)
        found = reader.encode(reader.plan(request))
        assert found.prompt.tokens.tolist() == wanted.prompt.tokens.tolist()
        assert found.prompt.item_lengths.tolist() == wanted.prompt.item_lengths.tolist()
        assert found.prompt.query_length == wanted.prompt.query_length
        assert found.label_token_ids.tolist() == wanted.label_token_ids.tolist()
    assert [(each.requests, each.full_encodes) for each in records] == [(1, 0), (1, 1)]
    assert all(each.seconds > 0 and set(each.counts) == set(COUNTERS) for each in records)


def test_what_is_refused_is_not_counted(reader: TextReader, records: list[EncodeStats]) -> None:
    with pytest.raises(RequestError, match="'items' holds 4 items: at most 3"):
        reader.plan(TextRequest("a", ["b"] * 4, labels=[" Yes"]))
    plan = reader.plan(TextRequest("a", ["b"], labels=["a label of several tokens"]))
    with pytest.raises(RequestError, match="a label must be exactly one"):
        reader.encode(plan)
    assert records == []
