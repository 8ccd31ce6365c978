"""What a model finds out when Triton starts it."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.server.server_resources import Instance
from hiscore.settings import DecodeSettings, TokenizerSettings
from tests.support import tiny_models

MODULE = "hiscore.edge.start"


class Tensor:
    """Triton's tensor, whose values come back through DLPack as `misread` makes them."""

    misread = staticmethod(lambda values: values)

    def __init__(self, name: str, values: Any) -> None:
        self.values = values

    def to_dlpack(self) -> Any:
        return self.values

    @classmethod
    def from_dlpack(cls, name: str, values: Any) -> "Tensor":
        return cls(name, cls.misread(values))

    def as_numpy(self) -> Any:
        return self.values


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace(Tensor=Tensor))  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


def arguments(
    repository: Path, *groups: dict[str, Any], name: str = "decode", **parameters: str
) -> dict[str, str]:
    config = {
        "instance_group": [*groups] or [{"kind": "KIND_CPU", "count": 1}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    return {
        "model_config": json.dumps(config),
        "model_name": name,
        "model_version": "1",
        "model_repository": str(repository / name),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{name}_0_0",
        "model_instance_device_id": "0",
    }


def test_a_numpy_that_triton_misreads_is_refused(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    start.check_numpy()
    # What Triton 2.51 makes of an array of NumPy 2: its strides are lost.
    monkeypatch.setattr(Tensor, "misread", staticmethod(lambda values: np.zeros(3, np.int32)))
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "24.10")
    with pytest.raises(
        RuntimeError, match=rf"Triton 24\.10 cannot read the arrays of NumPy {np.__version__}"
    ):
        start.check_numpy()


def test_a_model_says_why_it_cannot_serve_a_checkpoint(start: ModuleType, tmp_path: Path) -> None:
    checkpoint = tiny_models.make("llama", tmp_path / "classifier", labels=2)
    for settings, reason in (
        (DecodeSettings, "has no head for tokens"),
        (TokenizerSettings, "no tokenizer.json"),
    ):
        with pytest.raises(UnsupportedCheckpoint, match=f"cannot be served by this model: .*{reason}"):
            start.read_start(settings, arguments(tmp_path, MODEL=str(checkpoint)))


def test_a_model_has_its_own_name_and_place(
    start: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISCORE_RUN_DIRECTORY", str(tmp_path))
    checkpoint = tiny_models.make("llama", tmp_path / "lm")
    found = start.read_start(DecodeSettings, arguments(tmp_path, name="decode_small", MODEL=str(checkpoint)))
    assert (found.name, found.checkpoint, found.directory) == ("decode_small", checkpoint, tmp_path)
    assert found.labels == {"model": "decode_small", "version": "1"}
    assert f"settings of decode_small: MODEL={checkpoint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "groups", "expected"),
    [
        ("CPU", [("KIND_CPU", 1)], Instance("cpu", 1, 1)),
        ("CPU", [("KIND_CPU", 3)], Instance("cpu", 1, 3)),
        ("GPU", [("KIND_GPU", 1)], Instance("cuda:2")),
    ],
)
def test_an_instance_knows_its_device_and_how_many_share_it(
    kind: str, groups: list[tuple[str, int]], expected: Instance, start: ModuleType
) -> None:
    given = {
        "model_instance_kind": kind,
        "model_instance_name": "scorer_0_1",
        "model_instance_device_id": "2",
    }
    config = {"instance_group": [{"kind": name, "count": count} for name, count in groups]}
    assert start.instance_of(given, config) == expected


def test_control_another_kind_of_instance_is_refused(start: ModuleType) -> None:
    with pytest.raises(ValueError, match="KIND_MODEL is not served"):
        start.instance_of({"model_instance_kind": "MODEL"}, {})
