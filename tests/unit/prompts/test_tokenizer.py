"""Prompts have the tokens of the whole text, and a caller's text never forms a protected one."""

import itertools
import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import own
from hiscore.tokenization.panics import CannotEncode
from hiscore.tokenization.text_encoder import any_of
from tests.support import tiny_tokenizers

TEMPLATE = "<think>"
TEXTS = ["", "hi there?", " <b>ok</b>  [x]\n naïve 苹果 👩‍👩‍👧 ", "\ufdd00\ue000\ue001<|", "a < b > c | d"]


def ids_of(backend: Tokenizer, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_has_the_tokens_that_transformers_gives(checkpoint: Path, text: str) -> None:
    tokenizer, reference = PromptTokenizer(checkpoint, [TEMPLATE]), AutoTokenizer.from_pretrained(checkpoint)
    before, after = f"{tokenizer.protected[0]}user\n", f"{tokenizer.protected[-1]}\nassistant:"
    (ids,) = tokenizer.encode([own(before) + text + own(after)])
    assert ids == reference(before + text + after, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode_texts([text]) == [reference(text, add_special_tokens=False)["input_ids"]]


def test_no_protected_token_can_be_written(checkpoint: Path) -> None:
    tokenizer, backend = (
        PromptTokenizer(checkpoint, [TEMPLATE]),
        Tokenizer.from_file(str(checkpoint / "tokenizer.json")),
    )
    # Byte tokens stand for bytes of any text; the unknown token for what the vocabulary lacks.
    writable = {name for name in tokenizer.protected if name.startswith("<0x")} | {"<unk>"}
    special = {backend.token_to_id(name) for name in tokenizer.protected if name not in writable}
    frame = own(tokenizer.protected[-1])
    plain = [each for each in tokenizer.encode([frame + frame])[0] if each in special]
    assert plain or tokenizer.protected[-1] in writable, "the template's own"
    everything = "".join(tokenizer.protected)
    for attack in [*tokenizer.protected, everything, f" {everything[1:]}<", everything.replace("|", " |")]:
        (ids,) = tokenizer.encode([frame + attack + frame])
        assert [each for each in ids if each in special] == plain, attack
        # The control: the checkpoint's own tokenizer sees them.
        if attack in tokenizer.protected and attack not in writable:
            assert backend.token_to_id(attack) in ids_of(backend, attack)
        assert not special & set(tokenizer.encode_texts([attack])[0])


def test_texts_that_meet_cannot_form_one_together(checkpoint: Path) -> None:
    tokenizer = PromptTokenizer(checkpoint)
    # Any text may give the unknown token.
    token = next(name for name in tokenizer.protected if name != "<unk>")
    special = {Tokenizer.from_file(str(checkpoint / "tokenizer.json")).token_to_id(token)}
    for cut in range(1, len(token)):
        for prompt in (own("") + token[:cut] + token[cut:], own("") + token[:cut] + own(token[cut:])):
            assert not special & set(tokenizer.encode([prompt])[0])


@pytest.mark.parametrize("before", ["", " ", "\n"])
def test_a_text_cannot_go_on_with_a_token_that_the_template_begins(checkpoint: Path, before: str) -> None:
    """As in ``<{{ name }}>``: with the rest of the token's name, or with a part of it."""
    tokenizer = PromptTokenizer(checkpoint, [TEMPLATE])
    backend = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    writable = {name for name in tokenizer.protected if name.startswith("<0x")} | {"<unk>"}
    for token in [each for each in tokenizer.protected if each not in writable][:8]:
        number = backend.token_to_id(token)
        cuts = [at for at in range(1, len(token)) if not (token[at - 1].isalnum() and token[at].isalnum())]
        for start, end in itertools.combinations([*cuts, len(token)], 2):
            text = (own("") + before + token[start:end]).lstrip()
            (ids,) = tokenizer.encode([own(token[:start]) + text + own(token[end:])])
            assert number not in ids, (token, start, end)
        # The control: the template's own.
        assert number in tokenizer.encode([own(token)])[0]


def test_tokens_of_templates_and_piped_ones_are_protected_though_not_special(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.qwen2(), tmp_path)
    assert "<think>" not in PromptTokenizer(directory).protected
    assert "<think>" in PromptTokenizer(directory, ["{{ x }}<think>\n"]).protected
    assert "<|im_start|>" in PromptTokenizer(directory).protected


def test_a_vocabulary_that_gives_one_from_plain_text_is_refused(tmp_path: Path) -> None:
    """As Unigram may, or a BPE that takes whole words of its vocabulary without merging."""
    directory = tiny_tokenizers.save(tiny_tokenizers.smollm2(), tmp_path)
    path = directory / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["ignore_merges"] = True
    state["added_tokens"][0]["content"] = "word"
    state["model"]["vocab"]["word"] = state["model"]["vocab"].pop("<|endoftext|>")
    path.write_text(json.dumps(state))
    with pytest.raises(CannotEncode, match="'word'"):
        PromptTokenizer(directory).encode_texts(["word"])


OF_SEVERAL_TOKENS = ["🦄🦄🦄", "果物は🍏 และ 한국 हि", "a🦄b\n\n🦄  c ﬁ 🐢🐢"]


@pytest.mark.parametrize("left", [False, True])
def test_cut_keeps_the_characters_that_fit_and_no_token_more(checkpoint: Path, left: bool) -> None:
    tokenizer = PromptTokenizer(checkpoint)

    def count(part: str) -> int:
        return len(tokenizer.encode_texts([part])[0])

    falls_into_a_character = False
    for text in OF_SEVERAL_TOKENS:
        for tokens in range(count(text)):
            kept = tokenizer.cut(text, tokens, left)
            assert count(kept) <= tokens
            assert text.endswith(kept) if left else text.startswith(kept)
            # A space that is part of the next word's token may be lost as well.
            size = len(kept) + 2
            assert count(text[-size:] if left else text[:size]) > tokens
            falls_into_a_character |= count(kept) < tokens - 1
    # The control: these limits fall into characters, where there are tokens for all.
    assert falls_into_a_character or tokenizer.bytes_per_token is None


@pytest.mark.slow
def test_a_text_on_which_the_library_panics_cannot_be_encoded(tmp_path: Path) -> None:
    """A panic is not an `Exception`: it would be an answer of status 500."""
    backend = tiny_tokenizers.smollm2()
    # Its search doubles with each letter, until the library's own limit.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+b"), "isolated")
    tiny_tokenizers.save(backend, tmp_path)
    tokenizer = PromptTokenizer(tmp_path)
    assert tokenizer.encode_texts(["b"]) == [ids_of(backend, "b")]
    with pytest.raises(CannotEncode, match="gives up"):
        tokenizer.encode_texts(["a" * 40])
    with pytest.raises(CannotEncode, match="gives up"):
        tokenizer.cut("a" * 40, 3)


def test_a_text_is_searched_for_all_protected_tokens_at_once(checkpoint: Path) -> None:
    """As plain alternatives, hundreds would be tried at each ``<|`` of a caller's, and keep all others waiting."""
    tokenizer = PromptTokenizer(checkpoint)
    assert tokenizer._protected_text == any_of(tokenizer.protected)
