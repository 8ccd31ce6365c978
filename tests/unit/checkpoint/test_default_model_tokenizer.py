"""The default model's token ids, against a committed table.

The table's part ``published`` holds ids of the published tokenizer as other projects' tests record them from
the Hugging Face library; ``computed`` was made by the documented rules over tiktoken, which those ids confirmed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.settings import DEFAULT_MODEL

TABLE: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "smollm2_ids.json").read_text("utf-8")
)
ALL = TABLE["published"] | TABLE["computed"]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("text", ALL)
def test_table(text: str, tokenizer: Any) -> None:
    assert tokenizer(text).input_ids == ALL[text]


def test_control_without_splitting_digits_the_table_fails(directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert all(tokenizer.encode(text).ids == ids for text, ids in ALL.items())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrong = [text for text, ids in ALL.items() if tokenizer.encode(text).ids != ids]
    assert "   42   7" in wrong


def test_special_tokens(tokenizer: Any) -> None:
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert tokenizer.decode([1, 4093, 2], skip_special_tokens=True) == "user"
    assert len(tokenizer) == 49_152
