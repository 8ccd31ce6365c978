"""The templates say what the families' own code says, and every field of a caller is only text."""

import itertools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.prompts.chat import ChatTemplate, PromptError, read_chat_template
from hiscore.prompts.families import FAMILIES, UNKNOWN, FoundFamily, find_family
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.rerank import RerankPrompts, make_prompts
from hiscore.prompts.shared_beginning import Prompts, share
from hiscore.prompts.token_limits import TokenLimits, TooMuchText, Truncation
from hiscore.prompts.truncation import cut_prompts
from hiscore.tokenization.split_rule import SplitRule
from tests.support import tiny_tokenizers
from tests.support.chat_templates import CHATML
from tests.support.encoding import ids_of_pairs

# The model card of Qwen/Qwen3-Reranker-0.6B, and mxbai_rerank_v2.py of mixedbread-ai/mxbai-rerank.
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
MXBAI = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{instruction}query: {query}\ndocument: {document}\nYou are a search relevance expert who "
    "evaluates how well documents match search queries. For each query-document pair, carefully analyze the "
    "semantic relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for "
    "relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny_tokenizers.qwen2()
    names = "yes", "no", "Yes", "No", "</think>"
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    return tiny_tokenizers.save(tokenizer, tmp_path_factory.mktemp("Qwen3-Reranker-8B-int4"))


@lru_cache(maxsize=len(FAMILIES))
def prompts_of(checkpoint: Path, template: str) -> RerankPrompts:
    """As of a classifier: in small vocabularies, "yes" is no token. Shared: building takes longer than a test."""
    return RerankPrompts(checkpoint, template, is_classifier=True)


def test_qwen3_reranker_is_asked_as_its_card_says(qwen: Path) -> None:
    prompts = RerankPrompts(qwen)
    assert prompts.family is FAMILIES["qwen3-reranker"]
    assert prompts.text("q?", "d") == QWEN3.format(query="q?", document="d")
    assert "<Instruct>: Be kind.\n" in prompts.text("q", "d", "Be kind.")
    assert prompts.label_ids == AutoTokenizer.from_pretrained(qwen).convert_tokens_to_ids(["yes", "no"])


def test_mxbai_rerank_is_asked_as_its_code_says(qwen: Path) -> None:
    prompts = RerankPrompts(qwen, "mxbai-rerank-v2")
    assert prompts.text("q", "d") == MXBAI.format(instruction="", query="q", document="d")
    instruction = "instruction: i\n"
    assert prompts.text("q", "d", "i") == MXBAI.format(instruction=instruction, query="q", document="d")


def test_nemotron_rerank_is_asked_as_its_card_says(qwen: Path, tmp_path: Path) -> None:
    """One text, known by the model_type alone."""
    copied = Path(shutil.copytree(qwen, tmp_path / "fine-tuned"))
    (copied / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>"}))
    config = {
        "model_type": "llama_bidirec",
        "architectures": ["LlamaBidirectionalForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    }
    (copied / "config.json").write_text(json.dumps(config))
    prompts, recipe = make_prompts(copied)
    assert isinstance(prompts, RerankPrompts)
    assert prompts.text("q", "d") == "<|endoftext|>question:q \n \n passage:d"
    assert str(recipe) == "template nemotron-rerank (files), scored by its one label (files)"


@pytest.mark.slow
def test_bge_reranker_gemma_is_asked_as_its_card_says() -> None:
    """Its score is the logit of one label."""
    prompts = RerankPrompts(resolve(progress=False), "bge-reranker-v2-gemma")
    question = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'."
    )
    # This tokenizer's first token; Gemma's is <bos>.
    assert prompts.text("q", "d") == f"<|im_start|>A: q\nB: d\n{question}"
    assert prompts.text("q", "d", "i") == "<|im_start|>A: q\nB: d\ni"
    assert prompts.label_ids == AutoTokenizer.from_pretrained(resolve()).convert_tokens_to_ids(["Yes"])


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen3-Reranker-0.6B", "qwen3-reranker"),
        ("models--Qwen--Qwen3-Reranker-4B", "qwen3-reranker"),
        ("mxbai-rerank-large-v2", "mxbai-rerank-v2"),
        ("bge-reranker-v2-gemma", "bge-reranker-v2-gemma"),
        ("Qwen3-0.6B", None),
        ("SmolLM2-135M-Instruct", None),
    ],
)
def test_a_checkpoint_is_known_by_its_name(name: str, family: str | None, tmp_path: Path) -> None:
    """That of its directory, the one that was asked for, or that in its config."""
    expected = FoundFamily(FAMILIES[family], "name") if family else UNKNOWN
    by_config = tmp_path / "by config"
    by_config.mkdir()
    (by_config / "config.json").write_text(json.dumps({"_name_or_path": f"org/{name}"}))
    for found in (find_family(tmp_path / name), find_family(tmp_path, [name]), find_family(by_config)):
        assert found == expected


FIELDS = ("query", "document", "instruction")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("template", [name for name in FAMILIES if not FAMILIES[name].guard])
def test_no_field_forms_a_special_token(checkpoint: Path, template: str, field: str) -> None:
    """Every special token of every tokenizer, in every field of every template."""
    prompts = prompts_of(checkpoint, template)
    tokenizer = prompts.tokenizer
    writable = {name for name in tokenizer.protected if name.startswith("<0x")} | {"<unk>"}
    special = {tokenizer._plain.token_to_id(name) for name in tokenizer.protected if name not in writable}
    given = dict.fromkeys(FIELDS, "a")
    (clean,) = tokenizer.encode([prompts.text(**given)])
    attacks = ["".join(tokenizer.protected), *tokenizer.protected[:20]]
    for ids in tokenizer.encode([prompts.text(**{**given, field: attack}) for attack in attacks]):
        assert [each for each in ids if each in special] == [each for each in clean if each in special]


@pytest.mark.slow
def test_the_default_model_is_asked_in_its_own_chat() -> None:
    checkpoint = resolve(progress=False)
    prompts = RerankPrompts(checkpoint)
    text = prompts.text("q", "d")
    reference = AutoTokenizer.from_pretrained(checkpoint)
    content = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    expected = reference.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert text == expected
    assert content.endswith("Query: q\nDocument: d")


def test_reasoning_that_a_template_begins_is_ended() -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}", {})
    assert template.render([{"content": "x"}]) == "x<think>\n\n</think>\n\n"
    assert ChatTemplate("{{ enable_thinking }}", {}).render([]) == "False"
    harmony = ChatTemplate("{{ messages[0].content }}<|start|>assistant", {})
    answered = "x<|start|>assistant<|channel|>final<|message|>"
    assert harmony.render([{"content": "x"}]) == answered
    # A chat is free to reason.
    assert harmony.render_as_is([{"content": "x"}]) == "x<|start|>assistant"


def test_a_template_can_refuse_but_not_harm() -> None:
    with pytest.raises(PromptError, match="no system"):
        ChatTemplate("{{ raise_exception('no system') }}", {}).render([])
    for attack in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 // 0 }}"):
        with pytest.raises((PromptError, ZeroDivisionError)):
            ChatTemplate(attack, {}).render([])


def test_a_token_of_a_template_that_would_become_text_is_an_error(qwen: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ '<|im_start|>{}'.format(query) }}{{ document }}")
    with pytest.raises(ValueError, match=r"'<\|im_start\|>' in a way"):
        RerankPrompts(qwen, str(own), is_classifier=True)
    # The control: where it is kept track of.
    own.write_text("{{ '<|im_start|>' ~ query }}{{ document }}")
    assert RerankPrompts(qwen, str(own), is_classifier=True)


def test_a_checkpoint_without_a_chat_template_has_none(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None


def test_what_cannot_work_is_said_at_the_start(qwen: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a file nor one of"):
        RerankPrompts(qwen, "nothing")
    with pytest.raises(ValueError, match=r"'relevant indeed' does not add one token .* set PROMPT_LABELS"):
        RerankPrompts(qwen, labels=("relevant indeed", ""))
    with pytest.raises(ValueError, match="the same token"):
        RerankPrompts(qwen, labels=("yes", "yes"))
    own = tmp_path / "own.jinja"
    own.write_text("{{ query }} {{ document }} an")
    with pytest.raises(ValueError, match="does not add one token"):
        # "apple" is a token alone, "an" + "s" merges.
        RerankPrompts(qwen, str(own), ("s", "d"))


def test_labels_of_a_setting_may_have_several_tokens(qwen: Path) -> None:
    prompts, reference = (
        RerankPrompts(qwen, labels=("relevant indeed", "no")),
        AutoTokenizer.from_pretrained(qwen),
    )
    own = [reference(text)["input_ids"] for text in ("relevant indeed", "no")]
    assert prompts.label_lengths == [*map(len, own)] == [len(own[0]), 1]
    assert prompts.label_ids == own[0] + own[1]
    assert RerankPrompts(qwen, labels=("yes", "no")).label_lengths is None


def test_a_file_may_name_its_labels(qwen: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    # A byte order mark is no text.
    own.write_text('\ufeff{# labels: ["a", "b"] #}{{ query }} {{ document }}\n')
    prompts, tokenizer = RerankPrompts(qwen, str(own)), AutoTokenizer.from_pretrained(qwen)
    assert prompts.label_ids == tokenizer.convert_tokens_to_ids(["a", "b"])
    assert prompts.text("a", "b").startswith("a b")
    # The controls: anywhere else it is a comment, and what cannot be read is refused.
    own.write_text('{{ query }} {{ document }}{# labels: ["a", "b"] #}\n')
    assert RerankPrompts(qwen, str(own)).label_ids == RerankPrompts(qwen).label_ids
    for wrong in ("yes,no", '["yes"]', "[1, 2]"):
        own.write_text(f"{{# labels: {wrong} #}}{{{{ query }}}} {{{{ document }}}}")
        with pytest.raises(ValueError, match="must be a JSON list of two texts"):
            RerankPrompts(qwen, str(own))


def sentencepiece(build: Callable[[], Tokenizer], directory: Path, template: str | None) -> Path:
    """A tokenizer with marks for spaces that has Yes and No with a mark and without, as Llama 2's has."""
    state = json.loads(build().to_str())
    vocab, merges = state["model"]["vocab"], []
    for word in ("Yes", "No"):
        for at in range(1, len(word)):
            merges.append([word[:at], word[at]])
        merges.append(["▁", word])
    for piece in (piece for merge in merges for piece in (*merge, "".join(merge))):
        vocab.setdefault(piece, len(vocab))
    state["model"]["merges"] = merges + state["model"]["merges"]
    tiny_tokenizers.save(Tokenizer.from_str(json.dumps(state)), directory)
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


LLAMA_2 = """{% for message in messages %}{% if message.role == 'user' %}<s>[INST] {{ message.content }} [/INST]
{%- else %} {{ message.content }} </s>{% endif %}{% endfor %}"""
TINY_LLAMA = """{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}</s>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""


@pytest.mark.parametrize(
    ("template", "labels"),
    [(LLAMA_2, ["▁Yes", "▁No"]), (TINY_LLAMA, ["Yes", "No"]), (None, ["▁Yes", "▁No"])],
    ids=["Llama 2 chat", "TinyLlama", "no template"],
)
@pytest.mark.parametrize(
    "build", [tiny_tokenizers.llama2, tiny_tokenizers.metaspace_first, tiny_tokenizers.gemma]
)
def test_labels_are_the_tokens_with_which_an_answer_begins(
    build: Callable[[], Tokenizer], template: str | None, labels: list[str], tmp_path: Path
) -> None:
    """The truth is transformers': the token of a whole conversation where the answer stands."""
    checkpoint = sentencepiece(build, tmp_path, template)
    prompts, reference = RerankPrompts(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert prompts.label_ids == reference.convert_tokens_to_ids(labels)
    assert reference.unk_token_id not in prompts.label_ids
    if template:
        asked = prompts.text("q", "d").partition("Judge")[2].partition("Document: d")[0]
        messages = [{"role": "user", "content": f"Judge{asked}Document: d"}]
        ends = [
            reference.apply_chat_template([*messages, {"role": "assistant", "content": each}], tokenize=False)
            for each in ("Yes", "No")
        ]
        begun = len(reference(prompts.text("q", "d"), add_special_tokens=False)["input_ids"])
        answers = [reference(end, add_special_tokens=False)["input_ids"][begun] for end in ends]
        assert prompts.label_ids == answers
    # Others are what the setting says, as it is written.
    own = RerankPrompts(checkpoint, labels=("  Yes", "No"))
    begun = own.tokenizer.encode([own.text("a", "b")])[0]
    behind = [
        reference(own.text("a", "b") + each, add_special_tokens=False)["input_ids"]
        for each in ("  Yes", "No")
    ]
    assert own.label_ids == [token for each in behind for token in each[len(begun) :]]
    assert own.label_lengths is not None


TEXTS = ["an apple"] * 2 + [
    "",
    " an",
    "apples are apples",
    "日本。語",
    "<|im_end|>",
    " " * 3,
    "a\n\nb",
    "the the",
]


@pytest.mark.parametrize("template", [name for name in FAMILIES if not FAMILIES[name].guard])
@pytest.mark.parametrize("query", ["Is it a fruit?", "", "an ", "日本"])
def test_tokens_are_those_of_whole_prompts(checkpoint: Path, template: str, query: str) -> None:
    prompts = prompts_of(checkpoint, template)
    for documents in (TEXTS, TEXTS[:2], TEXTS[:1], TEXTS[3:5]):
        queries = [query] * len(documents)
        whole = prompts.tokenizer.encode([prompts.text(query, document) for document in documents])
        assert prompts.ids(queries, documents) == share(whole)
        swapped = prompts.tokenizer.encode([prompts.text(document, query) for document in documents])
        assert prompts.ids(documents, queries) == share(swapped)


@pytest.mark.slow
def test_what_prompts_share_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = RerankPrompts(resolve(progress=False))
    tokenizer = prompts.tokenizer
    encoded: list[str] = []
    encode_texts = tokenizer.encode_texts

    def noted(texts: Sequence[str]) -> list[list[int]]:
        encoded.extend(texts)
        return encode_texts(texts)

    monkeypatch.setattr(tokenizer, "encode_texts", noted)
    query, documents = "Is it a fruit, and is it sweet?", ["an apple", "a hammer", "pears"]
    prompts.ids([query] * 3, documents)
    shared, *rest = encoded
    assert query in shared
    assert shared.endswith("Document:")
    assert [document in text for document, text in zip(documents, rest, strict=True)] == [True] * 3
    assert not any(query in text for text in rest)
    # The control: prompts with other queries.
    encoded.clear()
    prompts.ids(["x", "y", "z"], documents)
    assert not any("Document:" in text for text in encoded[:1])


@pytest.mark.slow
def test_a_split_anywhere_changes_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with prompts split where they begin to differ, whatever stands there."""
    prompts = RerankPrompts(resolve(progress=False))
    documents = ["apple", "apples", "apply"]
    whole = share(prompts.tokenizer.encode([prompts.text("q", document) for document in documents]))
    assert prompts.ids(["q"] * 3, documents) == whole
    monkeypatch.setattr(prompts.tokenizer, "_splits", SplitRule(re.compile(r"(?<=appl)|(?<=app)l")))
    assert prompts.ids(["q"] * 3, documents) != whole


def test_share_leaves_something_of_each() -> None:
    assert share([]) == Prompts([], [])
    assert share([[1, 2, 3]]) == Prompts([1, 2], [[3]])
    assert share([[1, 2], [1, 2]]) == Prompts([1], [[2], [2]])
    assert share([[1, 2, 3], [1, 2], [1, 4]]) == Prompts([1], [[2, 3], [2], [4]])


def test_a_classifier_takes_pairs_unless_it_has_a_template(qwen: Path, tmp_path: Path) -> None:
    named, plain = tmp_path / qwen.name, tmp_path / "classifier"
    for directory in (named, plain):
        shutil.copytree(qwen, directory)
        write_config(directory, architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"})
    prompts, recipe = make_prompts(named)
    assert isinstance(prompts, RerankPrompts)
    assert str(recipe).startswith("template qwen3-reranker (name), scored by its one label (files)")
    pairs, recipe = make_prompts(plain)
    assert isinstance(pairs, PairPrompts)
    assert str(recipe) == "template pair (guess), scored by its one label (files)"
    assert "the template pair is a guess" in recipe.warnings[0]


def write_config(directory: Path, **keys: Any) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **keys}))


# As sentence-transformers has them in what it publishes.
ROLES = """{%- set asked = (messages | selectattr("role", "eq", "system") | map(attribute="content") | first) -%}
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the \
answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ asked | default("INSTRUCTION", true) }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>{{ "\n\n" }}"""
ZERANK = """{% for m in messages %}<|im_start|>{{ {'query': 'system', 'document': 'user'}[m.role] }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
PROMPTED = {"prompts": {"query": "Judge kindly."}, "default_prompt_name": "query"}
CLASSIFIER = {"architectures": ["Qwen3ForSequenceClassification"]}
ONE, TWO = {"0": "LABEL_0"}, {"0": "0", "1": "1"}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": ONE}
REFUSED = "not which tokens are its labels: set PROMPT_TEMPLATE"


@pytest.mark.parametrize(
    ("name", "config", "files", "given", "says"),
    [
        ("reranker", {}, {"chat_template.jinja": CHATML}, {},
         "template yes-no (guess), scored by 'Yes' against 'No' (guess)"),
        ("Qwen3-Reranker", {}, {"chat_template.jinja": ROLES, "config_sentence_transformers.json": PROMPTED}, {},
         "template chat_template (files), scored by 'yes' against 'no' (name)"),
        # The controls: nothing names the labels; a prompt of its own.
        ("reranker", {}, {"chat_template.jinja": ROLES}, {}, f"roles query and document, and {REFUSED}"),
        ("zerank-2", {}, {"chat_template.jinja": ZERANK}, {}, REFUSED),
        ("minilm", BERT, {"config_sentence_transformers.json": PROMPTED}, {},
         "template pair (files), scored by its one label (files)"),
        # What is set wins; files win over a name, of which the labels are where they are silent.
        ("zerank-2", {}, {"chat_template.jinja": ZERANK}, {"template": "mxbai-rerank-v2", "labels": ("yes", "")},
         "template mxbai-rerank-v2 (setting), scored by 'yes' (setting)"),
        ("Qwen3-Reranker-0.6B", {}, {"chat_template.jinja": ZERANK}, {},
         "template chat_template (files), scored by 'yes' against 'no' (name)"),
        ("model", {**CLASSIFIER, "id2label": ONE, "classifier_from_token": ["no", "yes"]}, {}, {},
         "template qwen3-reranker (files), scored by its one label (files)"),
        ("model", {**CLASSIFIER, "num_labels": 1, "classifier_from_token": ["0", "1"]}, {}, {},
         "template mxbai-rerank-v2 (files), scored by its one label (files)"),
        # Of several labels, the one that is said to be relevance.
        ("mxbai-rerank-base-v2-seq", {**CLASSIFIER, "id2label": TWO}, {}, {},
         "template mxbai-rerank-v2 (name), scored by its label '1' (files)"),
        ("model", {**CLASSIFIER, "id2label": {"0": "Relevant", "1": "irrelevant"}}, {}, {},
         "template pair (guess), scored by its label 'Relevant' (files)"),
        ("model", {**CLASSIFIER, "id2label": TWO}, {}, {}, "a classifier of 2 labels (0, 1): set PROMPT_LABELS"),
        ("model", CLASSIFIER, {}, {}, "a classifier of 2 labels (LABEL_0, LABEL_1): set PROMPT_LABELS"),
        ("model", {**CLASSIFIER, "id2label": TWO}, {}, {"labels": ("1",)},
         "template pair (guess), scored by its label '1' (setting)"),
        ("model", {**CLASSIFIER, "id2label": ONE}, {}, {"labels": ("yes",)}, "1 labels (LABEL_0): set PROMPT"),
    ],
)  # fmt: skip
def test_what_files_say_is_done_or_refused(
    qwen: Path, name: str, config: Any, files: Any, given: Any, says: str, tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(qwen, tmp_path / name)
    write_config(checkpoint, **{"architectures": ["Qwen3ForCausalLM"], **config})
    for file, contents in files.items():
        (checkpoint / file).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    if not says.startswith("template"):
        with pytest.raises(ValueError, match=re.escape(says)):
            make_prompts(checkpoint, **given)
        return
    prompts, recipe = make_prompts(checkpoint, **given)
    assert str(recipe).partition(", instruction")[0] == says
    template = recipe.template.value
    guess = f"the template {template} is a guess: neither the model's name nor its files say how it ranks"
    assert recipe.warnings == [f"{guess} (PROMPT_TEMPLATE)"] * ("(guess)" in says)
    if "chat_template.jinja" in files and "config_sentence_transformers.json" in files:
        assert "<Instruct>: Judge kindly.\n" in prompts.text("q", "d")


def test_only_what_was_asked_for_is_cut(qwen: Path) -> None:
    limits = TokenLimits(1_000, 10_000)
    prompts = RerankPrompts(qwen)
    query, documents = "What is it? " * 9, ["The item is: an apple. " * 30, "an apple"]
    whole = prompts.ids([query] * 2, documents)
    untouched = cut_prompts(prompts, [query] * 2, documents, None, Truncation(), limits)
    assert (untouched.prompts, untouched.cut) == ([(range(2), whole)], [False, False])
    short = cut_prompts(prompts, [query] * 2, documents, None, Truncation(query=4, document=5), limits)
    assert short.cut == [True, True]
    longest = max(len(whole.query) + len(item) for item in whole.items)
    for left in (False, True):
        within = Truncation(prompt=longest - 50, left=left)
        fitted = cut_prompts(prompts, [query] * 2, documents, None, within, limits)
        assert fitted.cut == [True, False]
        assert max(map(len, ids_of_pairs(fitted))) <= longest - 50
    empty = prompts.ids([query], [""])
    least = len(empty.query) + len(empty.items[0])
    # Also where the limit falls into a character of several tokens.
    for tokens, left in itertools.product(range(least, least + 12), (False, True)):
        within = Truncation(prompt=tokens, left=left)
        fitted = cut_prompts(prompts, [query], ["🦄苹果กล้วย" * 300], None, within, limits)
        assert tokens - 4 < len(ids_of_pairs(fitted)[0]) <= tokens
    fitted = cut_prompts(prompts, [query] * 2, documents, None, Truncation(prompt=least), limits)
    assert max(map(len, ids_of_pairs(fitted))) <= least
    with pytest.raises(TooMuchText, match=f"{least} tokens .* at most {least - 1}"):
        cut_prompts(prompts, [query] * 2, documents, None, Truncation(prompt=least - 1), limits)


def test_a_template_need_not_take_empty_texts(checkpoint: Path, tmp_path: Path) -> None:
    """The kind: a refusal of what no caller sent. In the control the caller sends it."""
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% if not query %}{{ raise_exception('no query') }}{% endif %}{{ query }} {{ document }}"
    )
    prompts = RerankPrompts(checkpoint, str(template), is_classifier=True)
    assert prompts.characters(["a fruit"], ["apple"]) > 0
    with pytest.raises(PromptError, match="no query"):
        prompts.ids([""], ["apple"])
