"""No token stands for more text than the bound says; where that is not known there is none."""

import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from hiscore.tokenization.token_length import max_bytes_per_token
from tests.support import tiny_tokenizers as tiny
from tests.unit.tokenization.test_safe_splits import TEXTS, ids

BOUNDED = {
    name: build()
    for name, build in {**tiny.WITH_SAFE_SPLITS, **tiny.WITHOUT_SAFE_SPLITS}.items()
    if name not in ("unigram", "twice")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_every_text_has_as_many_tokens_as_the_bound_says(name: str) -> None:
    backend = BOUNDED[name]
    bound = max_bytes_per_token(backend)
    assert bound is not None

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert bound * len(ids(backend, text)) >= len(text.encode())

    check()


def _with(**changes: object) -> Tokenizer:
    backend = tiny.qwen2()
    for name, value in changes.items():
        if name == "added":
            backend.add_tokens([value])
        else:
            setattr(backend, name, value)
    return backend


def test_the_longest_token_gives_the_bound() -> None:
    assert max_bytes_per_token(_with(added=AddedToken("x" * 100, normalized=False))) == 3 * 100  # NFC
    assert max_bytes_per_token(_with(normalizer=None, added=AddedToken("苹" * 50, normalized=False))) == 150


UNBOUNDED = {
    "unknown characters are one token": Tokenizer(
        models.BPE({"<unk>": 0}, [], unk_token="<unk>", fuse_unk=True)
    ),
    "letters without a token are left out": Tokenizer(models.BPE({"a": 0}, [])),
    "unigram": tiny.unigram(),
    "text is removed": _with(normalizer=normalizers.Strip()),
    "spaces are removed": _with(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "a token takes spaces": _with(added=AddedToken("<mask>", lstrip=True)),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_without_a_bound_nothing_is_claimed(name: str) -> None:
    assert max_bytes_per_token(UNBOUNDED[name]) is None
