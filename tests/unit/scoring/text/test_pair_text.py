"""Pairs in text: exactly the ids that transformers' tokenizer gives, for the tokenizer of every family."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hiscore.models.support import CheckpointFacts
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer
from tests.support.encoding import encode_requests
from tests.support.tiny_encoders import ENCODERS

FACTS = CheckpointFacts(vocab_size=500, context_length=10_000, is_classifier=True, is_encoder=True)
TOKENIZERS = {tiny.tokenizer.__name__: tiny.tokenizer for tiny in ENCODERS.values()}
SPECIAL = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "<s>", "</s>", "<pad>", "<mask>", "<unk>"]
# Pieces of which special tokens, words and whitespace at the edges are made.
WORDS = "[SE P] </ s> a fruit 12 é 苹果 🍎 ▁ ##"
PIECES = [*SPECIAL, *WORDS.split(), " ", "  ", "\n", "an apple"]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=8)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    """A tokenizer by name: transformers', and ours with pairs."""

    @cache
    def load(name: str) -> tuple[object, TextTokenizer]:
        directory: Path = tmp_path_factory.mktemp(name)
        TOKENIZERS[name]().save_pretrained(directory)
        (directory / "config.json").write_text('{"model_type": "bert"}')
        return AutoTokenizer.from_pretrained(directory), load_tokenizer(directory, pairs=True)

    return load


def pairs_of(tokenizer: TextTokenizer, request: TextRequest):
    """Every item's ids and token types, as the scorer would have them."""
    (answer,) = encode_requests(tokenizer, [request], Limits(), FACTS)
    prompt = answer.prompt
    query, items = np.split(prompt.tokens, [prompt.query_length])
    items = np.split(items, np.cumsum(prompt.item_lengths)[:-1])
    first, second = tokenizer.pair.token_types if len(query) else (0, 0)
    return [([*query, *item], [first] * len(query) + [second] * len(item)) for item in items]


def truth(tokenizer, first: str, second: str) -> tuple[list[int], list[int]]:
    """transformers' call, where an empty text makes no pair."""
    encoded = tokenizer(*([text for text in (first, second) if text] or [""]))
    return encoded["input_ids"], encoded.get("token_type_ids", [0] * len(encoded["input_ids"]))


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=texts, items=st.lists(texts, min_size=1, max_size=4), name=st.sampled_from(sorted(TOKENIZERS)))
def test_ids_and_types_equal_transformers(query: str, items: list[str], name: str, loaded) -> None:
    """Special tokens' names in a text become what transformers makes of them."""
    theirs, ours = loaded(name)
    assert pairs_of(ours, TextRequest(query, items)) == [truth(theirs, query, item) for item in items]
    found = pairs_of(ours, TextRequest(query, items, item_first=True))
    assert [ids for ids, _ in found] == [truth(theirs, item, query)[0] for item in items]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_control_texts_that_are_joined_first_have_other_ids(name: str, loaded) -> None:
    theirs, ours = loaded(name)
    ((ids, _),) = pairs_of(ours, TextRequest("Is it a fruit?", ["an apple"]))
    assert ids == theirs("Is it a fruit?", "an apple")["input_ids"]
    assert ids != theirs("Is it a fruit?an apple")["input_ids"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_query_is_sent_once(name: str, loaded) -> None:
    _, ours = loaded(name)
    (answer,) = encode_requests(ours, [TextRequest("Is it a fruit?", ["an apple", "12"])], Limits(), FACTS)
    prompt = answer.prompt
    template = ours.pair
    assert tuple(prompt.tokens[: len(template.before)]) == template.before
    separator = prompt.tokens[prompt.query_length - len(template.between) : prompt.query_length]
    assert tuple(separator) == template.between


def test_without_items_nothing_is_computed(loaded) -> None:
    (answer,) = encode_requests(loaded("wordpiece")[1], [TextRequest("a fruit", [])], Limits(), FACTS)
    assert (len(answer.prompt.tokens), answer.prompt.item_lengths.tolist()) == (0, [])


def test_a_pair_too_long_is_refused_alone(loaded) -> None:
    _, ours = loaded("wordpiece")
    facts = CheckpointFacts(vocab_size=500, context_length=12, is_classifier=True, is_encoder=True)
    requests = [TextRequest("a fruit", [item]) for item in ("an apple", "a " * 20, "12")]
    short, long, other = encode_requests(ours, requests, Limits(), facts)
    assert "have 25 tokens together" in str(long)
    assert "12" in str(long)
    assert len(short.prompt.tokens)
    assert len(other.prompt.tokens)


def test_the_tokens_of_all_pairs_count_against_the_limit(loaded) -> None:
    """An encoder computes the query with every item."""
    _, ours = loaded("wordpiece")
    request = TextRequest("a " * 50, ["a"] * 30)
    (answer,) = encode_requests(ours, [request], Limits(max_call_tokens=1_000), FACTS)
    assert "pairs of 1620 tokens in all" in str(answer)
