"""DEVICE=auto, decided without importing torch."""

from pathlib import Path

import pytest

from hiscore.launcher import device_choice
from hiscore.launcher.device_choice import choose_device


def test_auto_takes_a_gpu_only_where_all_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_choice.metadata, "version", lambda name: "2.11.0+cu130")
    monkeypatch.setattr(device_choice.Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia0")]))
    assert choose_device("auto")[0] == "cuda"
    assert choose_device("cpu")[0] == "cpu"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert choose_device("auto") == ("cpu", "CUDA_VISIBLE_DEVICES hides every GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(device_choice.metadata, "version", lambda name: "2.13.0+cpu")
    assert choose_device("auto")[0] == "cpu"
    monkeypatch.setattr(device_choice.metadata, "version", lambda name: "2.13.0+cu130")
    monkeypatch.setattr(device_choice.Path, "glob", lambda self, pattern: iter([]))
    assert choose_device("auto") == ("cpu", "this machine has no NVIDIA GPU")
