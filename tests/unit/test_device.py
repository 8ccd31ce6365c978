"""Copies between host and device: on the CPU there are none."""

import numpy as np
import torch

from hiscore.device import Uploads, download, upload


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
