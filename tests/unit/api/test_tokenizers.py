"""Any tokenizer with any chat template is served: a route without labels says so, and all else answers."""

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer, models, pre_tokenizers

from hiscore.api.app import create_app
from hiscore.decoding.engine.intake import PromptReader
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.text.encode import TokenizedRequest
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from tests.support import chat_templates, published_tokenizers, tiny_tokenizers
from tests.support.api_bodies import MESSAGES
from tests.support.encoding import encode_requests
from tests.unit.api.conftest import MakeSettings

TEMPLATES = {
    "none": "",
    "llama2": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}",
    "tiny_llama": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "mistral": chat_templates.MISTRAL,
}
NEEDS_LABELS: dict[str, Any] = {
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/decisions": {"input": "a", "questions": [{"type": "predicate", "instructions": "a?"}]},
}
OTHERS: dict[str, Any] = {
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [1]},
    "/v1/completions": {"prompt": "a"},
    "/detokenize": {"tokens": [0]},
    "/tokenize": {"prompt": "a"},
    "/v1/chat/completions": {"messages": MESSAGES},
}
TOLD = ("set PROMPT_LABELS", "where its answer begins", "the tokenizer gives up")


def _few(model: Any) -> Callable[[], Tokenizer]:
    """A vocabulary without unknown token, for whose other characters the library has no ids."""

    def build() -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        return tokenizer

    return build


FEW: dict[str, Callable[[], Tokenizer]] = {
    "Unigram": _few(models.Unigram([(each, -float(len(each))) for each in ("▁a", "▁b", "▁", "a", "b")])),
    "WordPiece": _few(models.WordPiece({"▁a": 0, "▁b": 1}, unk_token="?")),
    "words": _few(models.WordLevel({"▁a": 0, "▁b": 1}, unk_token="?")),
}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    **tiny_tokenizers.WITH_SAFE_SPLITS,
    **tiny_tokenizers.WITHOUT_SAFE_SPLITS,
    "phi3": published_tokenizers.phi3,
    "wordpiece": lambda: published_tokenizers.wordpiece(True),
    **FEW,
}
state_of = cache(lambda kind: str(KINDS[kind]().to_str()))


def saved(kind: str, template: str, directory: Path) -> Path:
    (directory / "tokenizer.json").write_text(state_of(kind))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256}
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATES[template]}
    named["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name, values in (("config.json", config), ("tokenizer_config.json", named)):
        (directory / name).write_text(json.dumps(values))
    return directory


@pytest.mark.parametrize(
    ("kind", "template"),
    [
        # Each kind with one template, each template with several kinds; then all pairs.
        pytest.param(kind, template, marks=pytest.mark.exhaustive if (number + at) % len(TEMPLATES) else ())
        for (number, kind), (at, template) in product(enumerate(KINDS), enumerate(TEMPLATES))
    ],
)
def test_any_tokenizer_is_served(
    kind: str, template: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    """The start is `strict`, as the launcher's check is."""
    app = create_app(make_settings(checkpoint=saved(kind, template, tmp_path), prompt_labels=""), strict=True)
    with TestClient(app) as client:
        replies = {path: client.post(path, json=body) for path, body in {**NEEDS_LABELS, **OTHERS}.items()}
    for path, reply in replies.items():
        refused = reply.status_code == 400
        if path in NEEDS_LABELS:
            assert not refused or any(told in reply.text for told in TOLD), reply.text
        elif path == "/v1/chat/completions" and template == "none":
            assert "no chat template: use /v1/completions" in reply.text
        elif refused:
            assert kind in FEW, reply.text
            assert "cannot" in reply.text
        assert refused or reply.status_code == 200, (path, reply.text)
    if kind in ("llama2", "metaspace_first"):
        assert replies["/v1/rerank"].status_code == 200


@pytest.mark.parametrize("kind", FEW)
def test_a_text_without_tokens_fails_alone(kind: str, tmp_path: Path) -> None:
    """The library's error is that of a whole batch."""
    tokenizer = load_tokenizer(saved(kind, "none", tmp_path))
    facts = CheckpointFacts(10, 10, is_classifier=False)
    labels = np.array([1], np.int32)
    good, bad = (TextRequest(query, [" b"], label_token_ids=labels) for query in ("a", "c"))
    before, refused, after = encode_requests(tokenizer, [good, bad, good], Limits(), facts)
    assert isinstance(refused, RequestError)
    assert "cannot encode" in refused.message
    assert isinstance(before, TokenizedRequest) and isinstance(after, TokenizedRequest)  # noqa: PT018
    prompts = PromptReader(facts, tokenizer, max_text_bytes=100)
    with pytest.raises(RequestError, match="cannot encode 'text_input'"):
        prompts.read(None, "c", SamplingParams())
    assert prompts.read(None, "a b", SamplingParams()).tolist() == [0, 1]
