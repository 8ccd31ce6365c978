"""Write cross-encoders with sentence-transformers, and print what its predict makes of pairs.

usage: .venv/bin/python tests/clients/cross_encoders.py PACKAGES DIRECTORY PAIRS

PACKAGES are the clients' environment, of which only what the server's lacks is taken: torch is not in it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import Dense, LogitScore, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Normalize, Pooling
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.support import tiny_encoders, tiny_models, tiny_tokenizers

SIZE = 64
KIND: dict[str, Any] = {"prompts": {"kind": "judge kindly: "}, "default_prompt_name": "kind"}
PLAIN: dict[str, Any] = {"module_output_name": "scores", "activation_function": None}
FLAT = """{% for m in messages %}<|im_start|>{{ {'query': 'system', 'document': 'user'}.get(m.role, m.role) }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PARTS = FLAT.replace("m.content", "m.content[0].text")
NO_SYSTEM = """Is it helpful?
<Document> {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
<Query> {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} ??"""

# Of each encoder its head, and what the cross-encoder is given beside it.
MODULAR: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "ettin": (
        "modernbert",
        [
            Pooling(SIZE, "cls"),
            Dense(SIZE, SIZE, bias=False, activation_function=nn.GELU()),
            LayerNorm(SIZE),
            Dense(SIZE, 1, **PLAIN),
        ],
        {"activation_fn": nn.Identity()},
    ),
    "mean": (
        "bert",
        [Pooling(SIZE, "mean"), Dropout(0.5), Dense(SIZE, 32), Dense(32, 1, **PLAIN)],
        KIND,
    ),
    "weighted": (
        "xlm-roberta",
        [
            Pooling(SIZE, "weightedmean"),
            Dense(SIZE, SIZE, activation_function=nn.SiLU(), use_residual=True),
            Normalize(),
            Dense(SIZE, 1, module_output_name="scores", activation_function=nn.Sigmoid()),
        ],
        {"activation_fn": nn.Tanh()},
    ),
    "joined": (
        "deberta-v3",
        [
            Pooling(SIZE, ("lasttoken", "max", "mean_sqrt_len_tokens")),
            Dense(
                3 * SIZE, 16, activation_function=nn.ReLU(), use_residual=True, module_output_name="narrow"
            ),
            Dense(16, 1, module_input_name="narrow", **PLAIN),
        ],
        {"activation_fn": nn.ReLU()},
    ),
    "last": ("eurobert", [Pooling(SIZE, "lasttoken"), Dense(SIZE, 1, module_output_name="scores")], {}),
    "distilled": ("distilbert", [Pooling(SIZE, "mean"), LayerNorm(SIZE), Dense(SIZE, 1, **PLAIN)], {}),
}
# Of each decoder its config, head, what the cross-encoder is given, and its template.
BEHIND_DECODERS: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any], str]] = {
    "decoder-last": (
        {"pad_token_id": 2, "eos_token_id": 2},
        [Pooling(SIZE, "lasttoken"), Dense(SIZE, 48), LayerNorm(48), Dense(48, 1, **PLAIN)],
        {"activation_fn": nn.Identity(), **KIND},
        FLAT,
    ),
    "decoder-pools": (
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        [Pooling(SIZE, ("weightedmean", "cls", "lasttoken", "mean")), Dense(4 * SIZE, 1, **PLAIN)],
        KIND,
        "",
    ),
    "decoder-both-ways": (
        {"is_causal": False},
        [Pooling(SIZE, "lasttoken"), Normalize(), Dense(SIZE, 1, bias=False, **PLAIN)],
        {"activation_fn": nn.Identity(), **KIND},
        "",
    ),
}


def spread(model: nn.Module) -> None:
    """Make everything random, so that scores differ by far more than any tolerance."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = name.endswith("weight") and parameter.ndim == 1
            parameter.normal_(
                1.0 if is_norm else 0.0, 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            )


def modular(name: str, base: Path) -> CrossEncoder:
    encoder, head, given = MODULAR[name]
    tiny = tiny_encoders.ENCODERS[encoder]
    AutoModel.from_config(tiny.config, dtype=torch.float32).save_pretrained(base)
    tokenizer = tiny.tokenizer()
    tokenizer.model_max_length = tiny_encoders.CONTEXT
    tokenizer.save_pretrained(base)
    made = CrossEncoder(modules=[Transformer(str(base)), *head], device="cpu", **given)
    spread(made)
    return made


def behind_decoder(name: str, base: Path) -> CrossEncoder:
    config, head, given, template = BEHIND_DECODERS[name]
    decoder(AutoModel, base, **config)
    if template:
        (base / "chat_template.jinja").write_text(template)
    made = CrossEncoder(modules=[Transformer(str(base)), *head], device="cpu", **given)
    spread(made)
    return made


def one_module(base: Path, **given: Any) -> CrossEncoder:
    tiny_encoders.make("bert", base, given.pop("labels", 1))
    return CrossEncoder(str(base), device="cpu", **given)


def decoder(auto: Any, base: Path, **config: Any) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizers.qwen2(), pad_token="<|im_end|>")
    tokenizer.save_pretrained(base)
    sizes = {**tiny_models.SIZES, **tiny_models.FAMILIES["qwen3"][1], "vocab_size": len(tokenizer), **config}
    made = auto.from_config(AutoConfig.for_model("qwen3", **sizes), dtype=torch.float32)
    spread(made)
    made.save_pretrained(base)


def causal(
    base: Path, template: str | None, ids: tuple[int, ...], task: dict[str, Any] | None = None, **given: Any
) -> CrossEncoder:
    decoder(AutoModelForCausalLM, base)
    if template:
        (base / "chat_template.jinja").write_text(template)
    first = Transformer(str(base), transformer_task="text-generation", **(task or {}))
    return CrossEncoder(modules=[first, LogitScore(*ids)], device="cpu", **given)


def classifier(base: Path) -> CrossEncoder:
    decoder(AutoModelForSequenceClassification, base, num_labels=1, pad_token_id=2)
    (base / "chat_template.jinja").write_text(FLAT)
    return CrossEncoder(str(base), device="cpu")


ASKED = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}
SHORT = {"processing_kwargs": {"text": {"max_length": 110}}}
PROMPT = {"prompts": {"query": "Judge kindly."}, "default_prompt_name": "query"}
IDENTITY = {"activation_fn": nn.Identity()}
OTHERS: dict[str, Any] = {
    "one-module": lambda base: one_module(base, **IDENTITY, max_length=24),
    "silent": one_module,
    "two-ids": lambda base: causal(base, FLAT, (40, 50), ASKED, **PROMPT, **IDENTITY),
    "one-id": lambda base: causal(base, PARTS, (41,), SHORT),
    "no-system": lambda base: causal(base, NO_SYSTEM, (42, 7)),
    "pairs": lambda base: causal(base, None, (43, 44), **PROMPT),
    "classifier": classifier,
}


def main() -> None:
    """Write each into a directory of its name; print scores by name and kind of call."""
    directory, pairs = Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.manual_seed(0)
    scores: dict[str, dict[str, list[float]]] = {}
    for name in (*MODULAR, *BEHIND_DECODERS, *OTHERS):
        base = directory / "bases" / name
        base.mkdir(parents=True)
        make = modular if name in MODULAR else behind_decoder
        model = OTHERS[name](base) if name in OTHERS else make(name, base)
        model.save_pretrained(str(directory / name))
        model = CrossEncoder(str(directory / name), device="cpu")
        scores[name] = {"predict": model.predict(pairs, batch_size=1).tolist()}
        if name in ("mean", "decoder-last", "two-ids", "one-id", "pairs", "classifier"):
            scores[name]["instructed"] = model.predict(pairs, batch_size=1, prompt="Be strict.").tolist()
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
