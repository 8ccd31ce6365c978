"""Copies between host and device: on the CPU there are none."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.device.copies import (
    MOST_IN_KEPT,
    MOST_KEPT,
    Kept,
    PinnedArrays,
    Uploads,
    cpu_has_bfloat16,
    download,
    upload,
)


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


def test_arrays_are_copied_to_their_places_alone() -> None:
    arrays, place = PinnedArrays(torch.device("cpu")), torch.full((4,), 9, dtype=torch.int32)
    first, empty = arrays.add(np.arange(3)), arrays.add(np.empty(0, np.int64))
    last = arrays.add(np.array([7, 8], np.int32))
    first.copy_to(place)
    empty.copy_to(place)
    assert (len(first), len(empty), len(last), place.tolist()) == (3, 0, 2, [0, 1, 2, 9])
    last.copy_to(place)
    assert (place.tolist(), first.to(torch.device("cpu")).tolist()) == ([7, 8, 2, 9], [0, 1, 2])
    with pytest.raises(RuntimeError):
        first.copy_to(place[:2])
    with pytest.raises(RuntimeError, match="too late"):
        arrays.add(np.arange(1))


def test_small_arrays_that_are_asked_for_again_are_not_sent_again() -> None:
    kept, device = Kept(), torch.device("cpu")

    def ask(values: np.ndarray) -> tuple[int, list[int]]:
        uploads = Uploads(device)
        get = kept.add(values, uploads)
        sent = len(uploads._waiting)
        assert get().dtype == torch.int32
        return sent, get().tolist()

    for sent in (1, 0):
        assert ask(np.array([9, 7])) == (sent, [9, 7])
        assert ask(np.array([7, 9], np.int32)) == (sent, [7, 9])
    large = np.arange(MOST_IN_KEPT + 1)
    assert ask(large) == ask(large) == (1, large.tolist())
    for number in range(MOST_KEPT - 1):
        assert ask(np.array([number])) == (1, [number])
    assert ask(np.array([7, 9]))[0] == 0
    assert ask(np.array([9, 7]))[0] == 1


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
