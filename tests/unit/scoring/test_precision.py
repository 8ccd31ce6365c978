import pytest
import torch

from hiscore.scoring import precision
from hiscore.scoring.precision import pick_dtype, use_device, warn_if_slow

CPU = torch.device("cpu")


def test_a_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert pick_dtype("auto", CPU) == pick_dtype("auto", CPU, stored_in_fp8=True) == "float32"
    assert pick_dtype("bfloat16", CPU) == "bfloat16"


def test_a_gpu_that_is_used_splits_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the whole process; for a CPU nothing is set."""
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(precision, "fix_product_sums", lambda: done.append("fixed"))
    assert use_device("cpu") == CPU
    assert done == []
    assert use_device("cuda:3") == torch.device("cuda", 3)
    assert done == [3, "fixed"]


@pytest.mark.parametrize(
    ("chosen", "device", "in_hardware", "warned"),
    [
        ("bfloat16", "cpu", False, True),
        ("bfloat16", "cpu", True, False),
        ("float32", "cpu", False, False),
        ("bfloat16", "cuda:0", False, False),
    ],
)
def test_bfloat16_without_hardware_is_warned_of_once(
    chosen: str,
    device: str,
    in_hardware: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: in_hardware)
    warn_if_slow(chosen, torch.device(device))
    assert ["DTYPE is bfloat16" in record.message for record in caplog.records] == [True] * warned
