"""No token stands for more text than the bound says; where that is not known there is none."""

import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from hiscore.tokenization.token_length import max_bytes_per_token
from tests.support import tiny_tokenizers as tiny
from tests.unit.tokenization.test_safe_splits import TEXTS, altered, ids

BOUNDED = {
    name: build()
    for name, build in {**tiny.WITH_SAFE_SPLITS, **tiny.WITHOUT_SAFE_SPLITS}.items()
    if name not in ("unigram", "twice")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=200)
@given(TEXTS)
def test_every_text_has_as_many_tokens_as_the_bound_says(name: str, text: str) -> None:
    bound = max_bytes_per_token(BOUNDED[name])
    assert bound is not None
    assert bound * len(ids(BOUNDED[name], text)) >= len(text.encode())


def test_the_longest_token_gives_the_bound() -> None:
    assert (
        max_bytes_per_token(altered(tiny.qwen2(), added=AddedToken("x" * 100, normalized=False))) == 3 * 100
    )  # NFC
    assert (
        max_bytes_per_token(
            altered(tiny.qwen2(), normalizer=None, added=AddedToken("苹" * 50, normalized=False))
        )
        == 150
    )


UNBOUNDED = {
    "unknown characters are one token": Tokenizer(
        models.BPE({"<unk>": 0}, [], unk_token="<unk>", fuse_unk=True)
    ),
    "letters without a token are left out": Tokenizer(models.BPE({"a": 0}, [])),
    "unigram": tiny.unigram(),
    "text is removed": altered(tiny.qwen2(), normalizer=normalizers.Strip()),
    "spaces are removed": altered(
        tiny.qwen2(),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "a token takes spaces": altered(tiny.qwen2(), added=AddedToken("<mask>", lstrip=True)),
    "a token takes the spaces behind it": altered(tiny.qwen2(), added=AddedToken("<mask>", rstrip=True)),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_without_a_bound_nothing_is_claimed(name: str) -> None:
    assert max_bytes_per_token(UNBOUNDED[name]) is None
