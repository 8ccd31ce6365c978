"""Published Mistral vocabularies are cut where claimed, in both forms in which their tokenizers are published.

The vocabularies come with Mistral's own package: 32,000 pieces of Mistral 7B v0.1, 32,768 of v0.3.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from hiscore.tokenization.mark_splits import mark_split_rule
from hiscore.tokenization.split_rule import SplitRule
from tests.support import sentencepiece_file
from tests.support.client_environment import package_file
from tests.support.tiny_tokenizers import CORPUS
from tests.unit.tokenization.test_mark_splits import holds, rule_of

pytestmark = pytest.mark.exhaustive  # `make check` has no environment with Mistral's package

VOCABULARIES = {"tokenizer.model.v1": 32_000, "mistral_instruct_tokenizer_240323.model.v3": 32_768}


def _normalised(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def _metaspace(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)


FORMS: dict[str, Callable[[Tokenizer], None]] = {"normaliser": _normalised, "Metaspace": _metaspace}


def tokenizer(model: BPE, form: str) -> Tokenizer:
    made = Tokenizer(model)
    FORMS[form](made)
    made.add_special_tokens([AddedToken(each, normalized=False) for each in ("<unk>", "<s>", "</s>")])
    return made


@pytest.fixture(scope="module", params=VOCABULARIES)
def path(request: pytest.FixtureRequest) -> Path:
    return package_file(f"mistral_common/data/{request.param}")


@pytest.fixture(scope="module")
def model(path: Path) -> BPE:
    return sentencepiece_file.bpe(path)


@pytest.fixture(params=FORMS)
def backend(model: BPE, path: Path, request: pytest.FixtureRequest) -> Tokenizer:
    made = tokenizer(model, request.param)
    assert made.get_vocab_size() == VOCABULARIES[path.name]
    return made


def texts() -> list[str]:
    """Sentences, and their words in any order with any spaces between them."""
    rng = random.Random(0)
    words = [*(word for text in CORPUS for word in text.split(" ") if word), "▁", "</s>", "  ", "\n"]
    mixed = (
        "".join(rng.choice(words) + rng.choice(["", " ", " ", "  "]) for _ in range(12)) for _ in range(300)
    )
    return [*CORPUS, *mixed]


def test_every_split_point_is_safe(backend: Tokenizer) -> None:
    rule = rule_of(backend)
    assert rule.last("The item is: an") == 12
    assert all(holds(backend, text, rule) for text in texts())


def test_a_wrong_rule_is_caught(backend: Tokenizer) -> None:
    rule = rule_of(backend)
    assert not all(holds(backend, text, SplitRule(rule.point, not rule.adds_space)) for text in texts())


def test_common_words_are_one_piece_each(model: BPE) -> None:
    """The vocabulary was read as it is meant: common words are one piece each."""
    made = tokenizer(model, "normaliser")
    pieces = made.encode("Hello, how are you?", add_special_tokens=False).tokens
    assert pieces == ["▁Hello", ",", "▁how", "▁are", "▁you", "?"]


@pytest.mark.parametrize("form", FORMS)
def test_one_piece_with_an_inner_mark_would_be_seen(path: Path, form: str) -> None:
    """The control of recognition."""
    assert mark_split_rule(tokenizer(sentencepiece_file.bpe(path, ["of▁the"]), form)) is None
