"""Whatever a model's logits are, the text of a sequence with a grammar is of that grammar."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer, grammar_from
from tokenizers import AddedToken, Tokenizer, decoders

from hiscore.decoding.requests.grammar import TOKEN_NAME, GrammarCompiler, GrammarMatcher, spelling_out
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.decoding.scheduling.batch import make_sampling_batch
from hiscore.decoding.sequence import DecodeCall, Holdings, Sequence
from hiscore.decoding.worker.token_sampler import TokenSampler
from hiscore.errors import Code, RequestError
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer
from tests.support import tiny_tokenizers

PADDING = 50
"""Logits beyond the tokenizer's vocabulary, as checkpoints have them."""
KINDS = ("llama3", "gemma")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return load_tokenizer(tiny_tokenizers.save(tokenizer_of(request.param), directory))


def tokenizer_of(kind: str) -> Tokenizer:
    backend = getattr(tiny_tokenizers, kind)()
    if kind == "smollm2":
        backend = tiny_tokenizers.train(backend)
    if kind in ("gemma", "llama2"):  # as the real ones: their byte tokens are none of the added ones
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        written = json.loads(backend.to_str())
        written["added_tokens"] = [
            each for each in written["added_tokens"] if not each["content"].startswith("<0x")
        ]
        backend = Tokenizer.from_str(json.dumps(written))
    return backend


def eos_of(tokenizer: TextTokenizer) -> int:
    names = ("<|endoftext|>", "</s>", "<|end_of_text|>")
    return next(found for name in names if (found := tokenizer.backend.token_to_id(name)) is not None)


def compiler(tokenizer: TextTokenizer) -> GrammarCompiler:
    vocabulary = tokenizer.backend.get_vocab_size() + PADDING
    return GrammarCompiler(tokenizer.backend, vocabulary, {eos_of(tokenizer)})


def generated(
    tokenizer: TextTokenizer,
    params: SamplingParams,
    seed: int,
    grammar: GrammarMatcher | None,
    tokens: int = 800,
) -> str | None:
    """What a model with random logits generates; None if it does not come to an end."""
    eos = eos_of(tokenizer)
    mask = grammar.mask() if grammar else None
    call = DecodeCall(np.array([1], np.int32), params, math.inf, grammar=grammar, mask=mask)
    sequence = Sequence(call, None, StopChecker(params, {eos}), Holdings(seq_index=0))
    sampler = TokenSampler(1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    vocabulary = tokenizer.backend.get_vocab_size() + PADDING
    out: list[int] = []
    for _ in range(tokens):
        logits = torch.randn(1, vocabulary, generator=generator) * 3
        logits[0, tokenizer.backend.token_to_id('"') or 0] += 4  # or strings would have no end for long
        batch = make_sampling_batch([sequence], np.array([1 + len(out)], np.int32))
        ids, _, _ = sampler.sample(logits, np.array([0], np.int32), batch)
        token = int(ids[0])
        if token == eos:
            return str(tokenizer.backend.decode(out, skip_special_tokens=True))
        out.append(token)
        if grammar:
            sequence.mask = grammar.advance(token)
    return None


def random_schema(choose: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "enum", "null"] + ["object", "array"] * (depth < 2)
    kind = choose.choice(kinds)
    if kind == "string":
        return {"type": "string", "maxLength": choose.randrange(1, 9)}
    if kind == "integer":
        least = choose.randrange(-50, 50)
        return {"type": "integer", "minimum": least, "maximum": least + choose.randrange(200)}
    if kind == "enum":
        return {"enum": choose.sample(["apple", "hammer", 7, True, None, "naïve 🍎"], 3)}
    if kind == "object":
        names = choose.sample(["name", "size", "item is", "ü"], choose.randrange(1, 4))
        properties = {name: random_schema(choose, depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(choose, depth + 1), "minItems": 1, "maxItems": 3}
    return {"type": kind}


@pytest.mark.slow
def test_every_output_validates_and_without_the_mask_it_does_not(tokenizer: TextTokenizer) -> None:
    compile_ = compiler(tokenizer).compile
    complete = valid_without = 0
    for seed in range(40):
        schema = random_schema(random.Random(seed))
        params = SamplingParams(temperature=1.0, seed=seed, json_schema=json.dumps(schema))
        text = generated(tokenizer, params, seed, compile_(params))
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
            complete += 1
        unmasked = generated(tokenizer, SamplingParams(temperature=1.0, seed=seed), seed, None, 30)
        try:
            jsonschema.validate(json.loads(unmasked or "no end"), schema)
            valid_without += 1
        except (ValueError, jsonschema.ValidationError):
            pass
    # White space between tokens may go on for long in random text.
    assert complete >= 30
    assert valid_without == 0


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"regex": "(yes|no)-[0-9]{3}"}, "(yes|no)-[0-9]{3}"),
        ({"ebnf": 'root ::= "a" ("b" | "cd")+ "!"'}, "a(b|cd)+!"),
    ],
)
def test_regex_and_ebnf_are_followed(tokenizer: TextTokenizer, given: dict[str, str], pattern: str) -> None:
    compile_ = compiler(tokenizer).compile
    found = set()
    for seed in range(10):
        params = SamplingParams(temperature=1.0, seed=seed, **given)  # type: ignore[arg-type]
        text = generated(tokenizer, params, seed, compile_(params))
        assert text is not None
        assert re.fullmatch(pattern, text), text
        found.add(text)
    assert len(found) > 1


THINK, RUN = "<think>", "   "


@pytest.fixture(scope="module", params=["smollm2", "llama3", "gemma", "llama2"])
def tagged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """With added tokens that are not special, as Qwen has `<think>` and Gemma runs of spaces."""
    backend = tokenizer_of(request.param)
    piece = piece_of(backend)
    backend.add_tokens([AddedToken(each, normalized=False) for each in (THINK, RUN, piece)])
    return load_tokenizer(tiny_tokenizers.save(backend, tmp_path_factory.mktemp(request.param)))


def piece_of(backend: Tokenizer) -> str:
    """A piece of the model's own vocabulary."""
    return min(
        piece for piece in backend.get_vocab(with_added_tokens=False) if len(piece) > 2 and piece.isalpha()
    )


def texts_of(tokenizer: TextTokenizer) -> list[str]:
    return [token.content for token in tokenizer.backend.get_added_tokens_decoder().values()]


def test_a_text_may_spell_any_added_token(tagged: TextTokenizer) -> None:
    """`<|im_end|>` would end the answer, and `<s>` have no text."""
    compile_ = compiler(tagged).compile
    for name in texts_of(tagged):
        text = f"A{name}b {name}"
        literal = "".join(f"\\x{{{ord(each):x}}}" for each in text)
        grammars = {
            "regex": (literal, text),
            "json_schema": (json.dumps({"const": text}), json.dumps(text)),
            "ebnf": (f"root ::= {json.dumps(text)}", text),
        }
        for kind, (source, expected) in grammars.items():
            params = SamplingParams(temperature=1.0, seed=1, **{kind: source})  # type: ignore[arg-type]
            assert generated(tagged, params, 1, compile_(params)) == expected, (name, kind)


def test_control_the_library_alone_cuts_such_a_text(tagged: TextTokenizer) -> None:
    tokenizer = LLTokenizer(tagged.backend.to_str(), eos_token=[eos_of(tagged)])
    matcher = LLMatcher(tokenizer, grammar_from("regex", f"A{THINK}B"), log_level=0)
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    for _ in range(9):
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        if matcher.is_error():
            break
        matcher.consume_token(int(np.flatnonzero(bits)[0]))
    assert "doesn't satisfy the grammar" in matcher.get_error()


def test_every_token_keeps_its_id(tagged: TextTokenizer) -> None:
    before, after = tagged.backend, Tokenizer.from_str(spelling_out(tagged.backend))
    names = {*texts_of(tagged)} - {piece_of(before)}
    assert len(names) >= 4
    for number in range(before.get_vocab_size()):
        piece = before.id_to_token(number)
        assert (after.id_to_token(number) == piece) == (piece not in names), piece
    assert after.get_vocab_size() == before.get_vocab_size()
    for name in names:
        assert before.token_to_id(name) not in after.encode(f"a{name}b", add_special_tokens=False).ids


def test_a_lark_grammar_may_name_an_added_token(tagged: TextTokenizer) -> None:
    source = f'start: {THINK} "a{THINK}" /b{THINK}/ // {THINK}'
    grammar = compiler(tagged).compile(SamplingParams(ebnf=source))
    assert grammar is not None
    bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
    assert list(np.flatnonzero(bits)) == [tagged.backend.token_to_id(THINK)]
    params = SamplingParams(temperature=1.0, seed=1, ebnf=source)
    assert generated(tagged, params, 1, grammar) == f"{THINK}a{THINK}b{THINK}"


END = "</think>"


@pytest.mark.parametrize("tokens", [(), (THINK,), (THINK, END)])
@pytest.mark.parametrize(
    ("marks", "text", "fits"),
    [
        ((END,), f'\nhm {{}} "no"<b>\n{END}\n\n"yes"', True),
        ((END,), f'{END}"yes"', True),
        ((END,), '"yes"', False),
        ((END,), f"hm{END}no", False),
        ((END,), f'hm{END}{END}"yes"', False),
        ((THINK, END), f'{THINK}\nhm{END}\n\n"yes"', True),
        ((THINK, END), '"yes"', True),
        ((THINK, END), f'hm{END}"yes"', False),
        ((THINK, END), f'{THINK}hm "yes"', False),
    ],
)
def test_a_grammar_holds_behind_the_reasoning(
    tokens: tuple[str, ...], marks: tuple[str, ...], text: str, fits: bool, tmp_path: Path
) -> None:
    """Whether its marks are tokens or text, which tokens may share with what comes before and behind."""
    backend = tokenizer_of("smollm2")
    backend.add_tokens([AddedToken(each, normalized=False) for each in tokens])
    tokenizer = load_tokenizer(tiny_tokenizers.save(backend, tmp_path))
    ids = backend.encode(text, add_special_tokens=False).ids
    grammars = {
        "json_schema": '{"const": "yes"}',
        "regex": '"yes"',
        "ebnf": 'start: QUOTE "yes" QUOTE\nQUOTE: "\\""',
    }
    for kind, source in grammars.items():
        params = SamplingParams(reasoning=marks, **{kind: source})  # type: ignore[arg-type]
        grammar = compiler(tokenizer).compile(params)
        assert grammar
        mask = grammar.mask()
        for number in [*ids, eos_of(tokenizer)]:
            if not (mask[number // 32] >> (number % 32)) & 1:
                assert not fits, (kind, backend.id_to_token(number))
                break
            mask = grammar.advance(number)
        else:
            assert fits, kind


def test_without_a_grammar_there_is_none(tokenizer: TextTokenizer) -> None:
    assert compiler(tokenizer).compile(SamplingParams()) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"json_schema": "{"}, "parameter 'json_schema': "),
        ({"json_schema": '{"type": "thing"}'}, "parameter 'json_schema': .*thing"),
        ({"json_schema": '{"type": "string", "not": {"const": "a"}}'}, "parameter 'json_schema': .*not"),
        ({"regex": "(a"}, "parameter 'regex': .*unclosed group"),
        ({"regex": "(?=a)" + "b" * 1_000}, "parameter 'regex': .*look-ahead .* not supported"),
        ({"json_schema": '{"type": "string", "pattern": "^(?!a)b"}'}, "'json_schema': .*not supported"),
        ({"ebnf": "root ::= missing"}, "parameter 'ebnf': .*missing"),
    ],
)
def test_a_bad_grammar_is_refused_by_name(tokenizer: TextTokenizer, given: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        compiler(tokenizer).compile(SamplingParams(**given))  # type: ignore[arg-type]
    assert refused.value.code is Code.INVALID_ARG
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("opened", ['"', "/"])
def test_what_a_grammar_does_not_close_is_read_once(opened: str) -> None:
    """Begun again at each quote, 64 KiB would keep the process busy for a minute."""
    text = opened + f"\\{opened}" * 9
    assert [found[0] for found in TOKEN_NAME.finditer(text)] == [text]


@pytest.mark.slow
def test_a_grammar_has_a_limit_of_its_size(tokenizer: TextTokenizer) -> None:
    many = json.dumps({"type": "object", "properties": {f"p{n}": {"type": "number"} for n in range(100)}})
    assert compiler(tokenizer).compile(SamplingParams(json_schema=many))
    small = GrammarCompiler(tokenizer.backend, 900, {eos_of(tokenizer)}, {"max_grammar_size": 50})
    with pytest.raises(RequestError, match="parameter 'json_schema': "):
        small.compile(SamplingParams(json_schema=many))
    # Beyond 65,536 symbols the library itself gives up.
    deep: dict[str, Any] = {"type": "string"}
    for n in range(13):
        deep = {"type": "object", "properties": {f"a{n}": deep, "b": deep}}
    with pytest.raises(RequestError, match="parameter 'json_schema': too large or too complex"):
        compiler(tokenizer).compile(SamplingParams(json_schema=json.dumps(deep)))


def test_a_tokenizer_that_the_library_does_not_know_is_named() -> None:
    backend = tiny_tokenizers.metaspace()
    with pytest.raises(RequestError, match="this checkpoint's tokenizer does not allow structured output"):
        GrammarCompiler(backend, 1_200, {0}).compile(SamplingParams(regex="a"))


def test_a_checkpoint_without_an_end_cannot_end_a_grammar(tokenizer: TextTokenizer) -> None:
    with pytest.raises(RequestError, match="names no end-of-sequence token"):
        GrammarCompiler(tokenizer.backend, 900, frozenset()).compile(SamplingParams(regex="a"))


def test_a_token_that_the_mask_forbids_is_an_error_of_its_own_sequence(tokenizer: TextTokenizer) -> None:
    grammar = compiler(tokenizer).compile(SamplingParams(regex="yes"))
    assert grammar is not None
    with pytest.raises(RequestError, match="parameter 'regex'"):
        grammar.advance(tokenizer.backend.token_to_id("0"))


class PanicException(BaseException):
    """What libraries written in Rust raise: no `Exception`."""


@pytest.mark.parametrize(
    "call", [GrammarMatcher.mask, lambda grammar: grammar.advance(1)], ids=["mask", "advance"]
)
def test_a_panic_of_the_library_is_an_error_of_its_request(call: Callable[[GrammarMatcher], Any]) -> None:
    class Matcher:
        def is_error(self) -> bool:
            return False

        def unsafe_compute_mask_ptr(self, *_: int) -> None:
            raise PanicException("index out of bounds")

        consume_token = unsafe_compute_mask_ptr

    with pytest.raises(Panic, match="out of bounds"):
        call(GrammarMatcher(Matcher(), 2, "json_schema"))  # type: ignore[arg-type]
