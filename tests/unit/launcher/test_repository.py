"""Strict templates, and which models are served."""

import json
from pathlib import Path
from typing import Any

import pytest

from hiscore.launcher.api import body_bytes
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.repository import (
    TEMPLATES,
    instances_on,
    model_values,
    render,
    select,
    text_bytes,
    write_repository,
)
from hiscore.models.support import DEFAULT_MODELS, MODELS, Capabilities
from hiscore.settings import MODEL_SETTINGS, Selector, ServeSettings, from_model_directory

EVERYTHING = Capabilities(models=MODELS, left_out={})
NO_TOKENIZER = Capabilities(
    models=("scorer", "decode"), left_out={"tokenizer": "no file", "score": "no tokenizer"}
)
TOKENIZER_ALONE = Capabilities(
    models=("tokenizer",), left_out={"score": "no scorer", "scorer": "odd", "decode": "odd"}
)
SELECTORS: tuple[Selector, ...] = ("auto", "quest", "dense")


def test_values_are_filled_in_and_escaped() -> None:
    assert render('a: "${a}" b: ${b} ${a}', {"a": 'x"\\\ny', "b": 3}) == 'a: "x\\"\\\\\\ny" b: 3 x\\"\\\\\\ny'


def test_a_value_is_not_a_template() -> None:
    assert render("${a}", {"a": "${b}"}) == "${b}"


@pytest.mark.parametrize(
    ("template", "values", "message"),
    [
        ("${a} ${b}", {"a": 1}, r"no value for the placeholder \$\{b\}"),
        ("${a}", {"a": 1, "b": 2}, "no placeholder for the setting 'b'"),
        ("${a} $b", {"a": 1}, r"malformed placeholder at '\$b'"),
        ("${a} ${b", {"a": 1}, r"malformed placeholder at '\$\{b'"),
        ("${a} ${b-c}", {"a": 1}, "malformed placeholder"),
    ],
)
def test_what_does_not_fit_is_refused(template: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        render(template, values)


@pytest.mark.parametrize(("device", "kind"), [("cpu", "KIND_CPU"), ("cuda", "KIND_GPU")])
def test_templates_are_filled_with_batching_and_instances(tmp_path: Path, device: Any, kind: str) -> None:
    settings = ServeSettings(max_batch_calls=7)
    values = model_values(settings, Path("/a"), device, MODELS, SELECTORS)
    write_repository(TEMPLATES, tmp_path, values)
    configs = {model: (tmp_path / model / "config.pbtxt").read_text() for model in MODELS}
    assert all("max_batch_size: 7" in configs[model] for model in ("score", "tokenizer", "scorer"))
    assert "max_batch_size: 0" in configs["decode"]
    assert f"kind: {kind}" in configs["scorer"]
    assert f"kind: {kind}" in configs["decode"]
    assert "kind: KIND_CPU" in configs["tokenizer"]
    # Any would turn Triton's prefetching off.
    assert not any("queue_policy {" in config for config in configs.values())


def test_each_model_reads_what_the_server_was_given(tmp_path: Path) -> None:
    """No setting is lost, mixed up or left at its default between the environment and a model."""
    given: dict[str, Any] = {
        "selector": "quest", "dtype": "bfloat16", "log_format": "json",
        "generation_config": "checkpoint",
        "prefix_cache": True,
    }  # fmt: skip
    every = {name for declared in MODEL_SETTINGS.values() for name in declared.model_fields}
    numbers = sorted(every - set(given) - {"checkpoint", "takes_text", "max_text_bytes"})
    given |= {name: 100 + place for place, name in enumerate(numbers)} | {
        "sparse_top_k": 99,
        "backup_ring": 98,
    }
    checkpoint = Path('/a "checkpoint"\\with\nall')
    settings = ServeSettings(**given)
    values = model_values(settings, checkpoint, "cpu", MODELS, SELECTORS)
    write_repository(TEMPLATES, tmp_path, values)
    assert set(MODEL_SETTINGS) == set(MODELS) - {"score"}
    for model, declared in MODEL_SETTINGS.items():
        expected = {**given, "checkpoint": str(checkpoint), "takes_text": True, "max_text_bytes": 8 * 2**20}
        assert dict(from_model_directory(declared, tmp_path / model)) == {
            name: expected[name] for name in declared.model_fields
        }
        # Triton shows this file to every caller.
        assert "checkpoint" not in (tmp_path / model / "config.pbtxt").read_text()


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 2_048), ("cuda", 16_384)])
def test_a_forward_is_as_large_as_its_device_needs(device: Any, tokens: int) -> None:
    for settings, expected in ((ServeSettings(), tokens), (ServeSettings(max_batch_tokens=64), 64)):
        values = model_values(settings, Path("/a"), device, MODELS, SELECTORS)
        assert json.loads(str(values["scorer"]["settings"]))["max_batch_tokens"] == expected


@pytest.mark.parametrize(
    ("ranks", "instances"),
    [
        (1, "kind: KIND_GPU count: 1"),
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


@pytest.mark.parametrize(("device", "gpus", "calls"), [("cpu", 1, 8), ("cuda", 1, 64), ("cuda", 2, 8)])
def test_one_of_several_scorers_is_handed_few_calls_at_once(
    device: Any, gpus: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    values = model_values(ServeSettings(cpu_instances=2), Path("/a"), device, MODELS, SELECTORS)
    given = {model: values[model]["max_batch_calls"] for model in ("score", "tokenizer", "scorer")}
    # An ensemble with larger batches than its step does not load.
    assert given == {"score": calls, "tokenizer": 64, "scorer": calls}


@pytest.mark.parametrize(("models", "takes_text"), [(("scorer",), False), (("score", "scorer"), True)])
def test_a_scorer_takes_text_where_score_is_loaded(models: tuple[str, ...], takes_text: bool) -> None:
    """A tokenizer takes memory and time to load."""
    values = model_values(ServeSettings(), Path("/a"), "cpu", models, SELECTORS)
    assert json.loads(str(values["scorer"]["settings"]))["takes_text"] is takes_text


def test_a_repository_without_templates_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"score/config\.pbtxt is missing: HISCORE_MODEL_REPOSITORY must name"
    ):
        write_repository(tmp_path, tmp_path / "to", {"score": {}})


def test_a_template_that_does_not_fit_is_named(tmp_path: Path) -> None:
    template = tmp_path / "from/score/config.pbtxt"
    template.parent.mkdir(parents=True)
    template.write_text("${a}")
    with pytest.raises(LaunchError, match=r"score/config\.pbtxt: no placeholder for the setting 'b'"):
        write_repository(tmp_path / "from", tmp_path / "to", {"score": {"a": 1, "b": 2}})


def test_everything_is_served_by_default() -> None:
    assert select("", EVERYTHING) == (DEFAULT_MODELS, {})
    served = tuple(model for model in DEFAULT_MODELS if model in NO_TOKENIZER.models)
    assert select("", NO_TOKENIZER) == (served, {"score": "no tokenizer", "tokenizer": "no file"})
    assert select("decode", NO_TOKENIZER) == (("decode",), {})


def test_a_tokenizer_alone_is_for_those_who_ask_for_it() -> None:
    assert select("tokenizer", TOKENIZER_ALONE) == (("tokenizer",), {})


def test_a_selection_is_taken_as_it_is() -> None:
    assert select(" scorer, tokenizer,scorer", EVERYTHING) == (("scorer", "tokenizer"), {})
    assert select("scorer,tokenizer", NO_TOKENIZER) == (("scorer",), {"tokenizer": "no file"})


@pytest.mark.parametrize(
    ("requested", "capabilities", "message"),
    [
        ("scorer,decoder", EVERYTHING, "MODELS names 'decoder': known are score, tokenizer, scorer, decode"),
        ("score", EVERYTHING, "MODELS names score, which needs scorer"),
        ("score,tokenizer", EVERYTHING, "MODELS names score, which needs scorer"),
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
    asked: str, selectors: tuple[Selector, ...], chosen: str
) -> None:
    settings = ServeSettings(selector=asked)  # type: ignore[arg-type]
    values = model_values(settings, Path("/a"), "cpu", ("decode",), selectors)
    assert json.loads(str(values["decode"]["settings"]))["selector"] == chosen


def test_a_selector_that_the_checkpoint_has_not_is_refused() -> None:
    settings = ServeSettings(selector="dsa")
    with pytest.raises(LaunchError, match="SELECTOR is 'dsa': this checkpoint has auto, quest, dense"):
        model_values(settings, Path("/a"), "cpu", ("scorer", "decode"), SELECTORS)
    # Where decode is not loaded, its setting is not checked.
    assert set(model_values(settings, Path("/a"), "cpu", ("scorer",), SELECTORS)) == {"scorer"}


@pytest.mark.parametrize(("tokens", "text"), [(1, 2**23), (4_000_000, 2**23), (2**23, 2**24)])
def test_the_text_and_the_body_of_a_call_follow_its_tokens(tokens: int, text: int) -> None:
    settings = ServeSettings(max_call_tokens=tokens)
    assert (text_bytes(settings), body_bytes(settings)) == (text, 4 * text)
