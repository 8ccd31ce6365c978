"""Strict templates, and which models are served."""

import re
from pathlib import Path

import pytest

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.repository import model_values, render, select, write_repository
from hiscore.models.support import DEFAULT_MODELS, MODELS, Capabilities
from hiscore.settings import DecodeSettings, ScorerSettings, Selector, ServeSettings, TokenizerSettings

EVERYTHING = Capabilities(models=MODELS, left_out={})
NO_TOKENIZER = Capabilities(
    models=("scorer", "decode"), left_out={"tokenizer": "no file", "score": "no tokenizer"}
)
SELECTORS: tuple[Selector, ...] = ("quest", "exact", "dense")


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
def test_our_templates_take_exactly_our_settings(tmp_path: Path, device: str, kind: str) -> None:
    settings = ServeSettings(max_batch_calls=7, queue_timeout_s=3)
    values = model_values(settings, Path("/a checkpoint"), device, MODELS, SELECTORS)  # type: ignore[arg-type]
    write_repository(settings.model_repository, tmp_path, values)
    configs = {model: (tmp_path / model / "config.pbtxt").read_text() for model in MODELS}
    assert all("max_batch_size: 7" in configs[model] for model in ("score", "tokenizer", "scorer"))
    assert f"kind: {kind}" in configs["scorer"]
    assert f"kind: {kind}" in configs["decode"]
    assert "kind: KIND_CPU" in configs["tokenizer"]
    assert all('"queue_timeout_s" value { string_value: "3" }' in configs[m] for m in MODELS[1:])
    # Any would turn Triton's prefetching off.
    assert not any("queue_policy {" in config for config in configs.values())
    assert 'string_value: "/a checkpoint"' in configs["scorer"]
    # A template that forgets a setting and a caller that forgets to pass it would agree: look at both.
    of_models = {"tokenizer": TokenizerSettings, "scorer": ScorerSettings, "decode": DecodeSettings}
    for model, of_model in of_models.items():
        assert set(re.findall(r'key: "(\w+)"', configs[model])) == set(of_model.model_fields)


def test_everything_is_served_by_default() -> None:
    assert select("", EVERYTHING) == (DEFAULT_MODELS, {})
    served = tuple(model for model in DEFAULT_MODELS if model in NO_TOKENIZER.models)
    assert select("", NO_TOKENIZER) == (served, {"score": "no tokenizer", "tokenizer": "no file"})
    assert select("decode", NO_TOKENIZER) == (("decode",), {})


def test_a_selection_is_taken_as_it_is() -> None:
    assert select(" scorer, tokenizer,scorer", EVERYTHING) == (("scorer", "tokenizer"), {})
    assert select("scorer,tokenizer", NO_TOKENIZER) == (("scorer",), {"tokenizer": "no file"})


@pytest.mark.parametrize(
    ("requested", "capabilities", "message"),
    [
        ("scorer,decoder", EVERYTHING, "MODELS names 'decoder': known are score, tokenizer, scorer, decode"),
        ("score", EVERYTHING, "needs tokenizer and scorer"),
        ("score,scorer", EVERYTHING, "needs tokenizer"),
        ("tokenizer", NO_TOKENIZER, r"no model is left to serve \(tokenizer: no file\)"),
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
        ("auto", SELECTORS, "quest"),
        ("exact", SELECTORS, "exact"),
        ("auto", ("dsa", "dense"), "dsa"),
        ("dense", ("dsa", "dense"), "dense"),
    ],
)
def test_the_checkpoint_decides_which_selectors_there_are(
    asked: str, selectors: tuple[Selector, ...], chosen: str
) -> None:
    settings = ServeSettings(selector=asked)  # type: ignore[arg-type]
    values = model_values(settings, Path("/a"), "cpu", ("decode",), selectors)
    assert values["decode"]["selector"] == chosen


def test_a_selector_that_the_checkpoint_has_not_is_refused() -> None:
    settings = ServeSettings(selector="dsa")
    with pytest.raises(LaunchError, match="SELECTOR is 'dsa': this checkpoint has quest, exact, dense"):
        model_values(settings, Path("/a"), "cpu", ("scorer", "decode"), SELECTORS)
    # Where decode is not loaded, nobody asks.
    assert set(model_values(settings, Path("/a"), "cpu", ("scorer",), SELECTORS)) == {"scorer"}
