"""What MODEL may name, what a directory must contain, and what the messages say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.checkpoint import CheckpointError, published_name, resolve
from hiscore.checkpoint.default_model import CACHE_NAME
from hiscore.settings import DEFAULT_MODEL

HEAVY = ("torch", "transformers", "tokenizers", "gguf", "numpy", "huggingface_hub", "rich", "safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory that passes the checks; resolving reads no weights."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
    return directory


def test_the_name_that_callers_see_has_no_revision() -> None:
    assert published_name(Path("/cache") / CACHE_NAME) == DEFAULT_MODEL != CACHE_NAME
    assert published_name(Path("/models/mine-r2")) == "mine-r2"


def test_a_local_directory_resolves_to_itself(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(checkpoint)) == checkpoint
    monkeypatch.chdir(checkpoint.parent)
    assert resolve("checkpoint") == checkpoint
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert resolve("~/checkpoint") == checkpoint


def test_a_directory_comes_before_a_hub_id(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkpoint.parent / "org").mkdir()
    checkpoint.rename(checkpoint.parent / "org" / "name")
    monkeypatch.chdir(checkpoint.parent)
    assert resolve("org/name") == checkpoint.parent / "org" / "name"


def test_missing_parts_are_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        resolve(str(checkpoint))
    (checkpoint / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle only \('pytorch_model\.bin'\).*save_pretrained"):
        resolve(str(checkpoint))
    (checkpoint / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve(str(checkpoint))


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    (checkpoint / "model.safetensors").rename(checkpoint / shards[0])
    with pytest.raises(CheckpointError, match=f"lacks '{shards[1]}'"):
        resolve(str(checkpoint))
    (checkpoint / shards[1]).write_bytes(b"")
    assert resolve(str(checkpoint)) == checkpoint
    (checkpoint / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not an index"):
        resolve(str(checkpoint))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("consolidated.safetensors", r"'consolidated\.safetensors' \(Mistral's own layout\), but neither"),
        ("adapter_model.safetensors", r"'adapter_model\.safetensors', but neither 'model\.safetensors' nor"),
    ],
)
def test_weights_in_another_layout_are_named(name: str, says: str, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    with pytest.raises(CheckpointError, match=says):
        resolve(str(checkpoint))
    # Beside the layout of transformers they are ignored.
    (checkpoint / "model.safetensors").write_bytes(b"")
    assert resolve(str(checkpoint)) == checkpoint


def test_an_adapter_that_is_not_merged_is_refused(checkpoint: Path) -> None:
    """Beside a model and alone; it is named with the model that it belongs to."""
    adapter = checkpoint / "adapter_config.json"
    adapter.write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"holds an adapter \('adapter_config\.json'\): merge it .* or remove"
    ):
        resolve(str(checkpoint))
    adapter.write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    (checkpoint / "config.json").unlink()
    (checkpoint / "model.safetensors").rename(checkpoint / "adapter_model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"is an adapter of 'org/base' .*, without a model: set MODEL to its model and ADAPTERS=name=",
    ):
        resolve(str(checkpoint))


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("text", ["", "[]", "{", "3", "\xff", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(text: str, name: str, checkpoint: Path) -> None:
    (checkpoint / name).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=f"{re.escape(name)}' is not a JSON object"):
        resolve(str(checkpoint))


@pytest.mark.parametrize("model", ["./missing", "/missing/model", "missing", "a/b/c", "", "org/", "-x/y z"])
def test_a_name_that_is_nothing(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"no model '{model}'"):
        resolve(model)


def test_a_file_is_not_a_directory(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        resolve(str(checkpoint / "config.json"))


@pytest.mark.slow
def test_resolving_what_is_there_imports_nothing_heavy(checkpoint: Path) -> None:
    cache = checkpoint.parent / "cache"
    cache.mkdir()
    from hiscore.checkpoint.default_model import CACHE_NAME

    checkpoint.rename(cache / CACHE_NAME)
    code = (
        "import sys; from hiscore.checkpoint import resolve; from hiscore.settings import DEFAULT_MODEL\n"
        "print(resolve(DEFAULT_MODEL)); print(resolve(sys.argv[1]))\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(cache / CACHE_NAME)],
        env={"HISCORE_CACHE": str(cache), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(cache / CACHE_NAME)] * 2 + ["[]"]
