"""Guards are asked by their own chat templates: as transformers fills them in, and their answers begin."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from hiscore.prompts.chat import PromptError
from hiscore.prompts.rerank import RerankPrompts, make_prompts
from tests.support import tiny_tokenizers

TURNS = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '\n' }}{% endfor %}"
HEADER = "<|start_header_id|>assistant<|end_header_id|>"
# As published: the part of each template that decides what is asked, and where it ends.
TEMPLATES = {
    "Llama-Guard-3-8B": TURNS + "{{ '" + HEADER + "' }}",
    "Llama-Guard-3-1B": (
        "{% for m in messages %}{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}"
        "{{ '<|' + m.role + '|>' + part['text'] | trim + '\n' }}{% endfor %}{% endfor %}" + HEADER + "\n\n"
    ),
    "Qwen3Guard-Gen-0.6B": TURNS + "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "shieldgemma-2b": TURNS + "* {{ guideline | trim }}\n{% if add_generation_prompt %}<model>{% endif %}",
    "granite-guardian-3.1-8b": (
        "{% if guardian_config.risk_name not in ('harm', 'Be kind.') %}{{ raise_exception('unknown') }}{% endif %}"
        "{% if guardian_config and guardian_config['risk_name'] %}{{ guardian_config['risk_name'] }}{% endif %}"
        + TURNS
        + "{% if add_generation_prompt %}<answer>{% endif %}"
    ),
}
# What the cards give to apply_chat_template, and what is then generated before the label.
ASKED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "Llama-Guard-3-8B": ({}, "\n\n", "unsafe", "safe"),
    "Llama-Guard-3-1B": ({}, "\n\n", "unsafe", "safe"),
    "Qwen3Guard-Gen-0.6B": ({}, "Safety:", " Unsafe", " Safe"),
    "shieldgemma-2b": ({"guideline": "Be kind."}, "", "Yes", "No"),
    "granite-guardian-3.1-8b": ({"guardian_config": {"risk_name": "Be kind."}}, "", "Yes", "No"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_tokenizers.qwen2()
    # One label is of two tokens, as in some vocabularies.
    names = "unsafe", "safe", " Uns", " Safe", "Yes", "No"
    made.add_tokens([AddedToken(name, normalized=False) for name in names])
    directory = tiny_tokenizers.save(made, tmp_path_factory.mktemp("tokenizer"))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def guard(tokenizer: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    copied = Path(shutil.copytree(tokenizer, tmp_path / request.param))
    (copied / "chat_template.jinja").write_text(TEMPLATES[request.param])
    return copied


@pytest.mark.parametrize("guard", TEMPLATES, indirect=True)
@pytest.mark.parametrize("query", ["", "How do I?"])
def test_a_guard_is_asked_as_its_card_says(guard: Path, query: str) -> None:
    variables, answer, *labels = ASKED[guard.name]
    prompts, recipe = make_prompts(guard)
    assert recipe.template.source == "name"
    own = AutoTokenizer.from_pretrained(guard)
    contents: list[Any] = [query or "d", "d"]
    if "'type'" in TEMPLATES[guard.name]:
        contents = [[{"type": "text", "text": text}] for text in contents]
    turns = [
        {"role": role, "content": each} for role, each in zip(("user", "assistant"), contents, strict=True)
    ]
    expected = own.apply_chat_template(
        turns if query else turns[:1], tokenize=False, add_generation_prompt=True, **variables
    )
    instruction = "Be kind." if variables else None
    prompt = prompts.text(query, "d", instruction)
    assert prompt == expected.removesuffix(answer) + answer
    assert (query or "d") in prompt.removesuffix(answer)
    ids = own(prompt, add_special_tokens=False)["input_ids"]
    for label, found in zip(labels, prompts.label_ids, strict=True):
        continued = own(prompt + label, add_special_tokens=False)["input_ids"]
        assert continued[: len(ids) + 1] == [*ids, found]


@pytest.mark.parametrize("guard", list(TEMPLATES)[:2], indirect=True)
def test_a_guard_without_a_place_for_instructions_refuses_them(guard: Path) -> None:
    with pytest.raises(PromptError, match="'instruction' has no place"):
        RerankPrompts(guard).text("", "d", "Be kind.")


@pytest.mark.parametrize("guard", ["shieldgemma-2b"], indirect=True)
def test_labels_that_begin_alike_or_templates_that_are_not_there_are_refused(guard: Path) -> None:
    with pytest.raises(ValueError, match="are the same token"):
        RerankPrompts(guard, labels=["Yes", "Yes!"])
    assert RerankPrompts(guard, "granite-guardian-3").text("", "d") == "<|user|>d\n* \n<model>"
    (guard / "chat_template.jinja").write_text("{{ messages[0].role }}")
    with pytest.raises(ValueError, match="writes no document"):
        make_prompts(guard)
    (guard / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="there is none"):
        make_prompts(guard)


@pytest.mark.parametrize("name", ["gpt-oss-safeguard-20b", "granite-guardian-4.1-8b"])
def test_a_guard_that_reasons_is_not_asked_for_one_token(name: str, tokenizer: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(tokenizer, tmp_path / name))
    (copied / "chat_template.jinja").write_text(TURNS)
    with pytest.raises(ValueError, match="a guard that reasons first"):
        make_prompts(copied)
    # The control: a person may know better.
    assert make_prompts(copied, "yes-no")[1].template.source == "setting"
