"""Copies between host and device: on the CPU there are none."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.device import Uploads, cpu_has_bfloat16, download, upload


def test_on_the_cpu_nothing_is_copied() -> None:
    values = np.arange(4, dtype=np.int32)
    uploaded = upload(values, torch.device("cpu"))
    assert (uploaded.dtype, uploaded.tolist()) == (torch.int32, [0, 1, 2, 3])
    assert uploaded.data_ptr() == values.ctypes.data
    assert upload(uploaded, torch.device("cpu")) is uploaded
    assert download(uploaded) is uploaded


def test_arrays_go_together_and_later_ones_on_their_own() -> None:
    uploads = Uploads(torch.device("cpu"))
    first, empty = uploads.add(np.arange(3)), uploads.add(np.empty(0, np.int64))
    assert (first().dtype, first().tolist(), empty().tolist()) == (torch.int32, [0, 1, 2], [])
    later = uploads.add(np.array([7], np.int32))
    assert (later().tolist(), first().tolist()) == ([7], [0, 1, 2])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx2 avx512f", False),
        ("avx512f avx512_bf16", True),
        ("amx_tile amx_bf16", True),
        ("asimd bf16", True),
    ],
)
def test_a_processor_with_bfloat16_says_so(flags: str, expected: bool, tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor : 0\nflags\t\t: fpu {flags} sse\n")
    assert cpu_has_bfloat16(facts) is expected
    assert cpu_has_bfloat16(tmp_path / "missing")
