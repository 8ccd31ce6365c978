"""The default model's token ids, against a committed table and against another implementation.

The table's part ``published`` holds ids of the published tokenizer as other projects' tests record them from
the Hugging Face library; ``computed`` was made with `Reference`, which those published ids confirm.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.settings import DEFAULT_MODEL

TABLE: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "smollm2_ids.json").read_text("utf-8")
)
ALL = TABLE["published"] | TABLE["computed"]
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Reference:
    """The documented rules over tiktoken: special tokens, then single digits, then GPT-2's pattern, then BPE."""

    def __init__(self, tokenizer_json: dict[str, Any]) -> None:
        self.special = {token["content"]: token["id"] for token in tokenizer_json["added_tokens"]}
        vocabulary = tokenizer_json["model"]["vocab"]
        byte_of = {symbol: byte for byte, symbol in self._symbols().items()}
        ranks = {
            bytes(byte_of[symbol] for symbol in token): i
            for token, i in vocabulary.items()
            if token not in self.special
        }
        # tiktoken wants every byte. Those that the vocabulary lacks are dropped from a piece before its merges.
        lacking = [bytes([byte]) for byte in range(256) if bytes([byte]) not in ranks]
        self.lacking = b"".join(lacking)
        ranks |= {byte: len(vocabulary) + i for i, byte in enumerate(lacking)}
        self.bpe = tiktoken.Encoding("reference", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})

    @staticmethod
    def _symbols() -> dict[int, str]:
        """GPT-2's printable stand-in for each byte."""
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", text):
            if part in self.special:
                ids.append(self.special[part])
                continue
            for between in regex.split(r"(\p{N})", part):
                for piece in regex.findall(GPT2, between):
                    known = piece.encode().translate(None, self.lacking)
                    ids += self.bpe._encode_single_piece(known) if known else []
        return ids


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(json.loads((directory / "tokenizer.json").read_text("utf-8")))


@pytest.mark.parametrize("text", ALL)
def test_table(text: str, tokenizer: Any, reference: Reference) -> None:
    assert tokenizer(text).input_ids == ALL[text]
    assert reference(text) == ALL[text]


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


# What the rules disagree on if they are applied in another order or to other classes of characters.
FRAGMENTS = st.one_of(
    st.sampled_from(
        [" ", "  ", "\n", "\t", "'s", "'LL", "1", "²", "٣", "Ⅷ", "é", "e\u0301", "中", "👍🏽", "\u200d"]
    ),
    st.sampled_from(["\u00a0", "\u3000", "_", "...", "<|im_end|>", "<|im_", "the", " and", "\x00", "\x04"]),
    st.text(max_size=4),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(text=st.lists(FRAGMENTS, max_size=20).map("".join))
def test_any_text(text: str, tokenizer: Any, reference: Reference) -> None:
    assert tokenizer(text).input_ids == reference(text)
