"""One tokenizer for all doors: score, rerank, chat, completions and decode's text go by tokenizer.json alone."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from hiscore.decoding.engine.intake import PromptReader
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.models.support import CheckpointFacts
from hiscore.prompts.chat import read_chat_template
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.rerank import make_prompts
from hiscore.prompts.token_limits import TokenLimits, Truncation
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.truncation import cut_pairs
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization import file, tokenizer
from hiscore.tokenization.detokenizer import DetokenizerFactory
from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer
from tests.support.encoding import encode_requests, ids_of_pairs, sequences
from tests.support.published_tokenizers import CHARACTERS, PUBLISHED, charsmap

QUERY = "Is this a fruit? "
TEXTS = [
    "an apple",
    "a\u00a0hammer and\u3000nails",
    "wait… the item",
    "ＴＨＥ item ① ﬁne",
    "The CAT",
    "  two  spaces\n\n\tand a tab ",
    " the",
    "don't: 12.5, 1,000!",
    "e\u0301té naïve ▁ ##s",
    "👩\u200d👩\u200d👧🍎",
    "苹果是水果吗？これは。สวัสดี",
    "",
]
SPECIAL = [" <|im_start|> a", "a</s>\nthe item", "[SEP] a [MASK]", "<think>a</think>", "a<s> b"]
LIMITS = TokenLimits(10_000, 10_000)


class Loaded(NamedTuple):
    """A directory, what this project makes of it, and the file by itself."""

    directory: Path
    tokenizer: TextTokenizer
    file: Tokenizer


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    @cache
    def loaded(name: str) -> Loaded:
        directory = PUBLISHED[name].save(tmp_path_factory.mktemp("tokenizer"))
        return Loaded(
            directory,
            load_tokenizer(directory, PUBLISHED[name].is_encoder),
            Tokenizer.from_file(str(directory / "tokenizer.json")),
        )

    return loaded


def scored(loaded: Loaded, query: str, items: list[str]) -> list[list[int]]:
    is_encoder = loaded.tokenizer.pair is not None
    facts = CheckpointFacts(10_000, 10_000, is_classifier=True, is_encoder=is_encoder)
    (answer,) = encode_requests(loaded.tokenizer, [TextRequest(query, items)], Limits(), facts)
    assert not isinstance(answer, Exception), answer
    return sequences(answer.prompt)


def reranked(loaded: Loaded, query: str, documents: list[str], template: Path) -> list[list[int]]:
    template.write_text("{{ query }}{{ document }}")
    maker, _ = make_prompts(loaded.directory, "" if loaded.tokenizer.pair else str(template))
    queries = [query] * len(documents)
    if isinstance(maker, PairPrompts):
        return ids_of_pairs(cut_pairs(maker, queries, documents, None, Truncation(), LIMITS))
    prompts = maker.ids(queries, documents)
    return [[*prompts.query, *item] for item in prompts.items]


def chatted(loaded: Loaded, texts: list[str]) -> list[list[int]]:
    template = read_chat_template(loaded.directory)
    assert template is not None
    conversations = Conversations(loaded.directory, template, LIMITS)
    return [conversations.prompt([{"role": "user", "content": text}], None).ids for text in texts]


def completed(loaded: Loaded, text: str) -> list[int]:
    facts = CheckpointFacts(10_000, 10_000, is_classifier=False)
    ids: list[int] = PromptReader(facts, loaded.tokenizer, 1_000).read(None, text, SamplingParams()).tolist()
    return ids


def differing(loaded: Loaded, template: Path) -> list[tuple[str, str]]:
    """Doors and texts whose ids are not those of tokenizer.json."""
    pairs, read = loaded.tokenizer.pair is not None, loaded.file
    items = [text for text in TEXTS if text or not pairs]
    doors: dict[str, tuple[list[str], list[list[int]], list[list[int]]]]
    if pairs:
        right = [read.encode(QUERY, item).ids for item in items]
        doors = {
            "score": (items, scored(loaded, QUERY, items), right),
            "rerank": (items, reranked(loaded, QUERY, items, template), right),
        }
    else:
        # To score and completions these spell tokens, to rerank and chat they are text.
        more = [*items, *SPECIAL]
        with_special = [read.encode(QUERY + item).ids for item in more]
        bare = [read.encode(QUERY + item, add_special_tokens=False).ids for item in items]
        doors = {
            "score": (more, scored(loaded, QUERY, more), with_special),
            "completions": (more, [completed(loaded, QUERY + item) for item in more], with_special),
            "rerank": (items, reranked(loaded, QUERY, items, template), bare),
            "chat": (items, chatted(loaded, [QUERY + item for item in items]), bare),
        }
    return [
        (door, item)
        for door, columns in doors.items()
        for item, found, true in zip(*columns, strict=True)
        if found != true
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_door_gives_the_ids_of_the_file(
    name: str, load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    assert differing(load(name), tmp_path / "template") == []


DECODERS = [name for name, published in PUBLISHED.items() if not published.is_encoder]
REBUILT = [name for name in PUBLISHED if name.startswith(("Llama 2", "BERT, cased", "DeBERTa"))]


@pytest.mark.parametrize("name", DECODERS)
def test_rerank_and_chat_agree_on_texts_that_spell_special_tokens(
    name: str, load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    loaded = load(name)
    as_text = chatted(loaded, [QUERY + text for text in SPECIAL])
    assert reranked(loaded, QUERY, SPECIAL, tmp_path / "template") == as_text
    decoder = DetokenizerFactory(loaded.tokenizer.backend)
    texts = [decoder.decode(ids, False) for ids in as_text]
    assert texts == [loaded.file.decode(ids, skip_special_tokens=False) for ids in as_text]


@pytest.mark.parametrize("name", REBUILT)
def test_control_a_tokenizer_that_transformers_rebuilds_is_noticed(
    name: str, load: Callable[[str], Loaded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As score and decode had it, while rerank and chat had the file's."""
    directory, _, right = load(name)
    theirs = AutoTokenizer.from_pretrained(directory).backend_tokenizer
    monkeypatch.setattr(tokenizer, "read_backend", lambda checkpoint: theirs)
    wrong = Loaded(directory, load_tokenizer(directory, PUBLISHED[name].is_encoder), right)
    assert "score" in {door for door, _ in differing(wrong, tmp_path / "template")}


def test_a_start_that_finds_two_answers_says_so_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = {}
    for number, name in enumerate([*REBUILT, *DECODERS[:1]]):
        caplog.clear()
        load_tokenizer(PUBLISHED[name].save(tmp_path / str(number)), PUBLISHED[name].is_encoder)
        said[name] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert {name for name, lines in said.items() if lines} == set(REBUILT)
    for lines in (said[name] for name in REBUILT):
        assert len(lines) == 1
        assert "every model and route goes by tokenizer.json" in lines[0]


@pytest.mark.parametrize("is_encoder", [False, True])
def test_a_class_that_transformers_cannot_load_is_needed_for_pairs_alone(
    is_encoder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = next(each for each in PUBLISHED.values() if each.is_encoder is is_encoder).save(tmp_path)
    (directory / "config.json").write_text("{")
    if is_encoder:
        with pytest.raises(Exception, match="JSON"):
            load_tokenizer(directory, pairs=True)
        return
    assert load_tokenizer(directory).encode_whole("an apple", False)
    assert "cannot load this tokenizer" in caplog.text


def test_a_directory_without_the_file_is_told_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(b"")
    for read in (file.read_backend, load_tokenizer, PromptTokenizer):
        with pytest.raises(
            ValueError, match=r"has spm\.model, but no tokenizer\.json: write one with transformers"
        ):
            read(tmp_path)


def test_the_map_of_characters_is_as_sentencepiece_writes_it() -> None:
    """The control of the tokenizers that hold one."""
    normalizer = normalizers.Precompiled(charsmap(CHARACTERS))
    assert normalizer.normalize_str("ＴＨＥ\u00a0ﬁne…\u3000①é") == "THE fine... 1é"
