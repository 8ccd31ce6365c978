"""``hiscore explain`` shows every part of a recipe with what says it, and why there is none."""

import json
from pathlib import Path

import pytest

from hiscore.api import __main__ as program
from tests.support import tiny_encoders


def test_each_part_is_shown_with_what_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_encoders.make("bert", tmp_path / "bert", 2)
    sentences = {
        "activation_fn": "torch.nn.Sigmoid",
        "prompts": {"a": "Be kind: "},
        "default_prompt_name": "a",
    }
    (checkpoint / "config_sentence_transformers.json").write_text(json.dumps(sentences))
    monkeypatch.setenv("PROMPT_LABELS", "LABEL_1,")
    assert program._explain([str(checkpoint)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "template    pair (files)",
        "readout     its label 'LABEL_1' (setting)",
        "activation  Sigmoid (config_sentence_transformers.json)",
        f"length      {tiny_encoders.CONTEXT} tokens (config.json)",
        "instruction 'Be kind: ' (config_sentence_transformers.json)",
    ]
    # What is wrong is said, and nothing else.
    (checkpoint / "config_sentence_transformers.json").write_text('{"activation_fn": "my.Own"}')
    assert program._explain([str(checkpoint)]) == 2
    assert "config_sentence_transformers.json: activation 'my.Own'" in capsys.readouterr().err
    assert program._explain([str(tmp_path / "nothing")]) == 2
    assert "no model" in capsys.readouterr().err
