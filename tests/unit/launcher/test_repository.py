"""Configs and environment of the models, and which of them are served."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from hiscore.launcher import repository
from hiscore.launcher.api import body_bytes
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.repository import (
    SHIPPED,
    changes,
    instances_on,
    select,
    with_settings,
    write_repository,
)
from hiscore.models.support import MODELS, Capabilities, choose_selector, label_names
from hiscore.settings import MODEL_SETTINGS, Selector, ServeSettings, read_settings

EVERYTHING = Capabilities(models=MODELS, left_out={})
NO_TOKENIZER = Capabilities(
    models=("scorer", "decode"),
    left_out={"tokenizer": "no file", "score": "no tokenizer", "classify": "no tokenizer"},
)
LANGUAGE_MODEL = Capabilities(
    models=("score", "tokenizer", "scorer", "decode"), left_out={"classify": "no labels"}
)
TOKENIZER_ALONE = Capabilities(
    models=("tokenizer",),
    left_out={"score": "no scorer", "classify": "no scorer", "scorer": "odd", "decode": "odd"},
)
SELECTORS: tuple[Selector, ...] = ("auto", "quest", "dense")


def test_a_repository_has_links_where_nothing_differs(tmp_path: Path) -> None:
    write_repository(SHIPPED, tmp_path, changes(ServeSettings(), "cpu", MODELS))
    for model in MODELS:
        assert (tmp_path / model).resolve() == SHIPPED / model


def test_a_config_is_written_where_a_value_differs(tmp_path: Path) -> None:
    settings = ServeSettings(max_batch_calls=7, cpu_instances=3)
    write_repository(SHIPPED, tmp_path, changes(settings, "cpu", MODELS))
    configs = {model: read(tmp_path / model / "config.pbtxt") for model in MODELS}
    sizes = {model: config.max_batch_size for model, config in configs.items()}
    assert sizes == {"score": 7, "classify": 7, "tokenizer": 7, "scorer": 7, "decode": 0}
    counts = {model: [group.count for group in config.instance_group] for model, config in configs.items()}
    assert counts == {"score": [], "classify": [], "tokenizer": [1], "scorer": [3], "decode": [3]}
    shipped_scorer = read(SHIPPED / "scorer/config.pbtxt")
    assert configs["scorer"].input == shipped_scorer.input
    assert (tmp_path / "scorer/1/model.py").samefile(SHIPPED / "scorer/1/model.py")


def test_names_of_labels_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"2": "c\nd", "0": "a"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = label_names(tmp_path)
    assert names == ("a", "LABEL_1", "c\nd")
    write_repository(SHIPPED, tmp_path, changes(ServeSettings(), "cpu", ("classify",), names))
    assert (tmp_path / "classify/labels.txt").read_text() == "a\nLABEL_1\nc d\n"
    assert (tmp_path / "classify/config.pbtxt").samefile(SHIPPED / "classify/config.pbtxt")
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    assert label_names(tmp_path) == ()


@pytest.mark.parametrize("model", MODELS)
def test_a_shipped_config_is_valid_and_says_only_what_triton_does_not_do_by_itself(model: str) -> None:
    config = read(SHIPPED / model / "config.pbtxt")
    assert config.name == model
    assert len(config.instance_group) == (model == "tokenizer")
    # Any would turn Triton's prefetching off.
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert config.HasField("dynamic_batching") is (model in ("tokenizer", "scorer"))


def test_each_model_reads_what_the_server_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting is lost, mixed up or left at its default between the environment and a model."""
    given: dict[str, Any] = {
        "selector": "quest", "dtype": "bfloat16", "log_format": "json",
        "generation_config": "checkpoint",
        "prefix_cache": True,
        "adapters": "judge=/",
    }  # fmt: skip
    every = {name for declared in MODEL_SETTINGS.values() for name in declared.model_fields}
    numbers = sorted(every - set(given) - {"model"})
    given |= {name: 100 + place for place, name in enumerate(numbers)} | {
        "sparse_top_k": 99,
        "backup_ring": 98,
    }
    checkpoint = Path('/a "checkpoint"\\with\nall')
    # What the launcher's own environment says does not count, since it may have been told otherwise.
    inherited = {"PATH": "/bin", "DTYPE": "fp8", "MAX_ITEMS": "5"}
    made = with_settings(inherited, ServeSettings(**given), checkpoint)
    assert with_settings(inherited, ServeSettings(), Path("/a")) == {"PATH": "/bin", "MODEL": "/a"}
    assert set(MODEL_SETTINGS) == set(MODELS) - {"score", "classify"}
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    for declared in MODEL_SETTINGS.values():
        expected = {**given, "model": str(checkpoint)}
        assert dict(read_settings(declared, {})) == {name: expected[name] for name in declared.model_fields}


def read(config: Path) -> Any:
    return text_format.Parse(config.read_text(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    ("ranks", "instances"),
    [
        (1, ""),
        (2, "kind: KIND_GPU count: 1 gpus: [ 0, 2, 4, 6 ]"),
        (8, "kind: KIND_GPU count: 1 gpus: [ 0 ]"),
    ],
)
def test_an_instance_is_on_the_first_of_its_gpus(
    ranks: int, instances: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(8))))
    assert instances_on("cuda", ranks, 3) == instances
    assert instances_on("cpu", ranks, 3) == "kind: KIND_CPU count: 3"


@pytest.mark.parametrize("gpus", [False, True])
def test_the_cpu_is_named_where_triton_would_take_a_gpu(gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "has_gpus", lambda: gpus)
    assert instances_on("cpu", 1, 1) == ("kind: KIND_CPU count: 1" if gpus else "")


@pytest.mark.parametrize(("device", "gpus", "calls"), [("cpu", 1, 8), ("cuda", 1, 64), ("cuda", 2, 8)])
def test_one_of_several_scorers_is_handed_few_calls_at_once(
    device: Any, gpus: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    found = changes(ServeSettings(cpu_instances=2), device, MODELS)
    given = {model: found[model].batch_calls for model in ("score", "tokenizer", "scorer")}
    # An ensemble with larger batches than its step does not load.
    assert given == {"score": calls, "tokenizer": 64, "scorer": calls}


def test_everything_is_served_by_default() -> None:
    assert select("", EVERYTHING) == (MODELS, {})
    left_out = {"score": "no tokenizer", "tokenizer": "no file"}
    assert select("", NO_TOKENIZER) == (("scorer", "decode"), left_out)
    # Nobody who serves a language model has asked for `classify`.
    assert select("", LANGUAGE_MODEL) == (LANGUAGE_MODEL.models, {})
    assert select("classify,tokenizer,scorer", LANGUAGE_MODEL) == (
        ("tokenizer", "scorer"),
        {"classify": "no labels"},
    )
    assert select("decode", NO_TOKENIZER) == (("decode",), {})


def test_a_tokenizer_alone_is_for_those_who_ask_for_it() -> None:
    assert select("tokenizer", TOKENIZER_ALONE) == (("tokenizer",), {})


def test_a_selection_is_taken_as_it_is() -> None:
    assert select(" scorer, tokenizer,scorer", EVERYTHING) == (("scorer", "tokenizer"), {})
    assert select("scorer,tokenizer", NO_TOKENIZER) == (("scorer",), {"tokenizer": "no file"})


@pytest.mark.parametrize(
    ("requested", "capabilities", "message"),
    [
        (
            "scorer,decoder",
            EVERYTHING,
            "MODELS names 'decoder': known are score, classify, tokenizer, scorer, decode",
        ),
        ("score", EVERYTHING, "MODELS names score, which needs tokenizer and scorer"),
        ("score,tokenizer", EVERYTHING, "MODELS names score, which needs tokenizer and scorer"),
        ("classify,scorer", EVERYTHING, "MODELS names classify, which needs tokenizer and scorer"),
        ("tokenizer", NO_TOKENIZER, r"no model is left to serve \(tokenizer: no file\)"),
        ("", TOKENIZER_ALONE, r"no model is left to serve \(score: no scorer; scorer: odd; decode: odd\)"),
        ("scorer,tokenizer", TOKENIZER_ALONE, r"no model is left to serve \(scorer: odd\)"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(
    requested: str, capabilities: Capabilities, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        select(requested, capabilities)


@pytest.mark.parametrize(
    ("asked", "selectors", "chosen"),
    [
        ("auto", SELECTORS, "auto"),
        ("quest", SELECTORS, "quest"),
        ("auto", ("dsa", "dense"), "dsa"),
        ("dense", ("dsa", "dense"), "dense"),
    ],
)
def test_the_checkpoint_decides_which_selectors_there_are(
    asked: Selector, selectors: tuple[Selector, ...], chosen: str
) -> None:
    assert choose_selector(asked, selectors) == chosen


def test_a_selector_that_the_checkpoint_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="SELECTOR is 'dsa': this checkpoint has auto, quest, dense"):
        choose_selector("dsa", SELECTORS)


@pytest.mark.parametrize(("tokens", "text"), [(1, 2**23), (4_000_000, 2**23), (2**23, 2**24)])
def test_the_text_and_the_body_of_a_call_follow_its_tokens(tokens: int, text: int) -> None:
    settings = ServeSettings(max_call_tokens=tokens)
    assert (settings.max_text_bytes, body_bytes(settings)) == (text, 4 * text)
