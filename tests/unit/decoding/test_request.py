"""Prompts of decode: what is read of them, and every reason to refuse one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.decoding.request import PromptReader
from hiscore.decoding.sampling_params import SamplingParams
from hiscore.errors import Code, RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.tokenization import load_tokenizer
from tests.support import tiny_tokenizers

FACTS = CheckpointFacts(vocab_size=700, context_length=100, is_classifier=False)
IDS = np.array([5, 0, 699], np.int32)
PLAIN = SamplingParams()


@pytest.fixture(scope="module", params=["llama3", "eos", "twice"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    return tiny_tokenizers.save(getattr(tiny_tokenizers, request.param)(), directory)


@pytest.mark.parametrize("text", ["", "Is this a fruit?", "naïve 🍎 <|im_end|>", " a\n\n  b "])
def test_text_is_encoded_as_its_tokenizer_does(checkpoint: Path, text: str) -> None:
    tokenizer = load_tokenizer(checkpoint)
    facts = CheckpointFacts(tokenizer.backend.get_vocab_size(), 100, False)
    expected = AutoTokenizer.from_pretrained(checkpoint)(text)["input_ids"]
    prompt = PromptReader(facts, tokenizer, 1_000).read(None, text, PLAIN)
    assert prompt.dtype == np.int32
    assert prompt.tolist() == expected


def test_ids_are_taken_as_they_are_and_copied() -> None:
    given = IDS.copy()
    prompt = PromptReader(FACTS, None, 1_000).read(given, None, PLAIN)
    given[:] = 0
    assert prompt.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("ids", "text", "options", "says"),
    [
        (None, None, PLAIN, "exactly one of 'input_ids' and 'text_input' is needed: neither was sent"),
        (IDS, "a", PLAIN, "exactly one of 'input_ids' and 'text_input' is needed: both were sent"),
        (IDS[:0], None, PLAIN, "'input_ids' is empty"),
        (np.array([5, -1], np.int32), None, PLAIN, "'input_ids' holds -1: ids of this model are 0 to 699"),
        (np.array([700], np.int32), None, PLAIN, "'input_ids' holds 700: ids of this model are 0 to 699"),
        (None, "ää", PLAIN, "'text_input' needs a tokenizer, which this checkpoint does not have"),
        (IDS, None, SamplingParams(stop=("a",)), "parameter 'stop' needs text"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(
    ids: Any, text: str | None, options: SamplingParams, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        PromptReader(FACTS, None, 1_000).read(ids, text, options)
    assert refused.value.code is Code.INVALID_ARG


def test_text_has_bounds_too(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.smollm2(), tmp_path))
    reader = PromptReader(FACTS, tokenizer, 5)
    with pytest.raises(RequestError, match="'text_input' is empty: at least one token"):
        reader.read(None, "", PLAIN)
    assert len(reader.read(None, "abcde", PLAIN))
    with pytest.raises(RequestError, match="'text_input' holds 6 bytes: at most 5 in one call"):
        reader.read(None, "äää", PLAIN)
    # A tokenizer may have tokens for which there is no embedding.
    few = PromptReader(CheckpointFacts(3, 100, False), tokenizer, 5)
    with pytest.raises(RequestError, match=r"'text_input' holds .* ids of this model are 0 to 2"):
        few.read(None, "abc", PLAIN)
    assert reader.read(None, "a", SamplingParams(stop=("b",))).shape == (1,)
