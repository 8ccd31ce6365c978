"""Pairs for encoders are cut where a request asks, to the tokens that sentence-transformers would score."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hiscore.prompts.chat import PromptError
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.token_limits import TokenLimits, TooMuchText, Truncation
from hiscore.prompts.truncation import CutPrompts, cut_pairs, longest_first
from tests.support import tiny_tokenizers
from tests.support.encoding import ids_of_pairs
from tests.support.tiny_encoders import ENCODERS

CONTEXT = 40
LONG, SHORT = "the giant panda is a bear that eats bamboo in china " * 9, "hi, 日本"
QUERY, DOCUMENTS = "what is a panda?", [LONG, SHORT, LONG[7:], "a" * 9]
OF_ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "deberta-v3")
OF_DECODERS = {name: tiny_tokenizers.WITH_SAFE_SPLITS[name] for name in ("llama3", "qwen2", "llama2")}


@pytest.fixture(scope="module", params=[*OF_ENCODERS, *OF_DECODERS])
def checkpoint(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    if build := OF_DECODERS.get(request.param):
        return tiny_tokenizers.save(build(), directory)
    ENCODERS[request.param].tokenizer().save_pretrained(directory)
    return directory


def cut(
    prompts: PairPrompts,
    query: str | list[str],
    documents: list[str],
    how: Truncation,
    context: int = CONTEXT,
) -> CutPrompts:
    queries = [query] * len(documents) if isinstance(query, str) else query
    return cut_pairs(prompts, queries, documents, None, how, TokenLimits(context, 10_000))


@pytest.mark.slow
@pytest.mark.parametrize("query", [QUERY, LONG])
def test_tokens_are_those_of_a_tokenizer_that_truncates(checkpoint: Path, query: str) -> None:
    prompts, reference = PairPrompts(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    whole = [reference(query, document)["input_ids"] for document in DOCUMENTS]
    for most in (8, 9, 21, CONTEXT, 400):
        pairs = cut(prompts, query, DOCUMENTS, Truncation(prompt=most))
        pair = partial(reference, query, truncation="longest_first", max_length=most)
        assert ids_of_pairs(pairs) == [pair(document)["input_ids"] for document in DOCUMENTS]
        assert pairs.cut == [len(each) > most for each in whole]
        # The control: where the query is the longer one, documents are not all that is cut.
        assert query != LONG or (ids_of_pairs(pairs)[0] == whole[0][:most]) == (len(whole[0]) <= most)


def test_ends_are_kept_where_they_are_asked_for(checkpoint: Path) -> None:
    prompts, reference = (
        PairPrompts(checkpoint),
        AutoTokenizer.from_pretrained(checkpoint, truncation_side="left"),
    )
    pairs = cut(prompts, QUERY, DOCUMENTS, Truncation(prompt=30, left=True))
    assert (
        ids_of_pairs(pairs)[0] == reference(QUERY, LONG, truncation="only_second", max_length=30)["input_ids"]
    )
    assert pairs.cut == [True, False, True, False]


def test_each_text_may_have_a_limit_of_its_own(checkpoint: Path) -> None:
    prompts, reference = PairPrompts(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    pairs = cut(prompts, [LONG, QUERY], [LONG, SHORT], Truncation(query=5, document=6), context=400)
    alone = [reference(text, add_special_tokens=False)["input_ids"] for text in (LONG, QUERY, SHORT)]
    around = prompts.template.before, prompts.template.between, prompts.template.after
    assert ids_of_pairs(pairs) == [
        [*around[0], *alone[0][:5], *around[1], *alone[0][:6], *around[2]],
        [*around[0], *alone[1][:5], *around[1], *alone[2][:6], *around[2]],
    ]
    assert pairs.cut[0]


def test_what_is_too_long_names_what_to_ask_for(checkpoint: Path) -> None:
    prompts = PairPrompts(checkpoint)
    cut(prompts, QUERY, [SHORT], Truncation())
    for truncation in (Truncation(), Truncation(document=CONTEXT)):
        with pytest.raises(
            TooMuchText, match=rf"'truncate_prompt_tokens'.*: at most {CONTEXT} \(MAX_CONTEXT\)$"
        ):
            cut(prompts, QUERY, [SHORT, LONG], truncation)
    with pytest.raises(PromptError, match="'instruction' has no place"):
        cut_pairs(prompts, [QUERY], [SHORT], "i", Truncation(), TokenLimits(CONTEXT, 10_000))
    with pytest.raises(TooMuchText, match="no room for a query and a document"):
        cut(prompts, QUERY, [SHORT], Truncation(prompt=1))


def test_the_longer_text_is_cut_first() -> None:
    assert [longest_first(*each, 10) for each in ((3, 4), (2, 50), (50, 2), (7, 50), (50, 7), (8, 8))] == [
        (3, 4), (2, 8), (8, 2), (5, 5), (5, 5), (5, 5),
    ]  # fmt: skip
