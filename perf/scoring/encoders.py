"""Time encoders' pairs, by ids and by text, beside sentence-transformers where it is installed.

usage: python -m perf.scoring.encoders --out DIR

Weights are random, with real rerankers' geometries; a word is a token, so all documents are equally long, and
sentence-transformers pads nothing.
"""

import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
)

from hiscore.scoring.pair_scorer import load_encoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.text.encode import RequestEncoder
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from perf.machine.facts import process_facts
from perf.script import arguments, described, write_json

QUERY, DOCUMENT, DOCUMENTS, CALLS = 10, 200, 100, 16
BATCH_SIZES = (32, 128, 256)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "num_labels": 1}


def modernbert(**sizes: Any) -> PretrainedConfig:
    ids = {**IDS, "cls_token_id": 0, "sep_token_id": 2}
    return ModernBertConfig(
        vocab_size=50_368, max_position_embeddings=8_192, classifier_pooling="cls", **ids, **sizes
    )


def geometries() -> dict[str, PretrainedConfig]:
    small = {"hidden_size": 256, "num_hidden_layers": 7, "num_attention_heads": 4, "intermediate_size": 384}
    middle = {
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1_152,
    }
    mini = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1_536}
    large = {
        "hidden_size": 1_024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4_096,
    }
    large |= {"vocab_size": 250_002, "max_position_embeddings": 8_194, "type_vocab_size": 1}
    return {
        "MiniLM-L6": BertConfig(vocab_size=30_522, **mini, **IDS),
        "Ettin-17M": modernbert(**small),
        "Ettin-150M": modernbert(**middle),
        "bge-reranker-v2-m3": XLMRobertaConfig(**large, **IDS),
    }


def save(config: PretrainedConfig, words: list[str], directory: Path) -> None:
    """Write a checkpoint with a tokenizer that knows these words."""
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).to(torch.bfloat16).save_pretrained(directory)
    numbers = {word: at for at, word in enumerate([*SPECIAL, *words])}
    of_words = Tokenizer(models.WordPiece(numbers, unk_token="<unk>"))
    of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    of_words.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    marks = dict(zip(("cls", "pad", "sep", "unk", "mask"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=of_words, model_max_length=512, model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": mark for name, mark in marks.items()},
    ).save_pretrained(directory)  # fmt: skip


def seconds(work: Callable[[], object], count: int = 7) -> float:
    """The median of a few runs, after two that warm up."""
    found = []
    for _ in range(count + 2):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[2:])


def of_peer(directory: Path, device: str, calls: list[tuple[str, list[str]]]) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder  # type: ignore[import-not-found,unused-ignore]

    model = CrossEncoder(str(directory), device=device, model_kwargs={"dtype": torch.bfloat16})
    pairs = [(query, document) for query, documents in calls[:4] for document in documents]

    def predict(some: list[tuple[str, str]], size: int) -> object:
        return model.predict(some, batch_size=size, show_progress_bar=False)

    rates = {size: len(pairs) / seconds(lambda size=size: predict(pairs, size), 3) for size in BATCH_SIZES}  # type: ignore[misc]
    best = max(rates, key=lambda size: rates[size])
    return {
        "pairs/s by batch size": rates,
        "a call, ms": 1e3 * seconds(lambda: predict(pairs[:DOCUMENTS], best)),
    }


def measure(name: str, config: PretrainedConfig, words: list[str], rng: random.Random) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    directory = Path(tempfile.mkdtemp()) / name
    save(config, words, directory)

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    calls = [(text(QUERY), [text(DOCUMENT) for _ in range(DOCUMENTS)]) for _ in range(CALLS)]
    scorer = load_encoder_scorer(directory, device, "bfloat16", 32_768, max_context=512)
    encoder = RequestEncoder(load_tokenizer(directory, pairs=True), Limits(), scorer.facts)

    def encoded(some: list[tuple[str, list[str]]]) -> list[ScoreRequest]:
        found = encoder.encode([encoder.plan(TextRequest(*each)) for each in some])
        labels, options = np.empty(0, np.int32), ScoreOptions()
        return [ScoreRequest(scorer.packing.prompt(each.prompt), labels, options) for each in found]  # type: ignore[union-attr]

    requests = encoded(calls)
    found: dict[str, Any] = {
        "a call by ids, ms": 1e3 * seconds(lambda: scorer.score(requests[:1])),
        "a call by text, ms": 1e3 * seconds(lambda: scorer.score(encoded(calls[:1]))),
        "saturation by ids, pairs/s": CALLS * DOCUMENTS / seconds(lambda: scorer.score(requests)),
        "tokenizer alone, pairs/s": CALLS * DOCUMENTS / seconds(lambda: encoded(calls)),
    }
    try:
        found["sentence-transformers"] = of_peer(directory, device, calls)
    except ImportError as error:
        found["sentence-transformers"] = described(error)
    return found


def main() -> None:
    options = arguments(__doc__, "encoders.json").parse_args()
    rng = random.Random(0)
    words = sorted({"".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8))) for _ in range(28_000)})
    results: dict[str, Any] = {"machine": process_facts(options.commit)}
    for name, config in geometries().items():
        results[name] = measure(name, config, words, rng)
        print(name, results[name], flush=True)
        write_json(options.out / "encoders.json", results)


if __name__ == "__main__":
    main()
