"""Every setting is looked at before a weight is read."""

import errno
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from hiscore.checkpoint import BadCheckpoint, CheckpointError
from hiscore.checkpoint.digests import write_digests
from hiscore.launcher import Server, workspace
from hiscore.launcher.api import CHECKED, Api, wanted
from hiscore.launcher.choice import choose
from hiscore.launcher.errors import BadSetting, LaunchError
from hiscore.settings import ServeSettings

ANY_TEXT = {"api_model_names"}
BY_THE_API = {"prompt_labels"}
"""Settings whose text only a tokenizer can judge: the API's process refuses it, before the models start."""
VARIABLES = {"TRITONSERVER", "TRITON_BACKENDS", "HISCORE_MODEL_REPOSITORY"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 8,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which a server would be started, with a file of no weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name in ("HTTP", "GRPC", "METRICS", "API"):
        monkeypatch.setenv(f"{name}_PORT", "0")
    monkeypatch.setenv("MODEL", str(tmp_path))
    monkeypatch.setenv("DEVICE", "cpu")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def look() -> None:
    settings = ServeSettings()
    wanted(settings)
    choose(settings)


def test_the_control_passes() -> None:
    look()


SETTINGS = [name.upper() for name in ServeSettings.model_fields if name not in ANY_TEXT | BY_THE_API]


@pytest.mark.parametrize("name", [*SETTINGS, "TRITONSERVER", "HISCORE_MODEL_REPOSITORY"])
def test_nonsense_in_any_setting_is_refused_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "no such/thing")
    with pytest.raises((ValidationError, BadSetting, BadCheckpoint)) as refused:
        look()
    # A hub's name and a directory are told apart by the message, which shows the value.
    shown = "no such/thing" if name == "MODEL" else name
    assert shown.lower() in str(refused.value).lower()


def test_backends_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONSERVER", "/bin/true")
    for backends in ("", str(tmp_path)):
        monkeypatch.setenv("TRITON_BACKENDS", backends)
        with pytest.raises(BadSetting, match=r"does not exist: .*\(TRITONSERVER, TRITON_BACKENDS\)"):
            look()


@pytest.mark.parametrize("name", ["HOST_KV_BYTES", "DEVICE_KV_BYTES", "QUERY_CACHE_BYTES", "MAX_CONTEXT"])
def test_more_than_there_is_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "64")
    look()
    monkeypatch.setenv(name, "1000000000000")
    with pytest.raises(BadSetting, match=f"{name} is 1000000000000"):
        look()


def test_only_settings_that_may_be_wrong_are_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Api] = []
    monkeypatch.setattr(Api, "check", lambda api: asked.append(api))
    Api(ServeSettings(), Path(), "localhost:1", ["score"]).check_settings()
    assert not asked
    for name in CHECKED:
        Api(
            ServeSettings(**{name: "a=/" if name == "adapters" else "a"}), Path(), "localhost:1", ["score"]
        ).check_settings()
    assert len(asked) == len(CHECKED)


def test_a_full_disk_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(prefix: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workspace.tempfile, "mkdtemp", full)
    with pytest.raises(LaunchError, match=r"\(TMPDIR\) cannot be written: No space left on device"):
        Server(ServeSettings()).start()


def test_a_server_is_not_started_on_a_file_that_has_changed(tmp_path: Path) -> None:
    write_digests(tmp_path)
    (tmp_path / "model.safetensors").open("ab").write(b"\0")
    with pytest.raises(CheckpointError, match="is not loaded"):
        Server(ServeSettings(), tmp_path / "log").start()
    assert not (tmp_path / "log").exists()
