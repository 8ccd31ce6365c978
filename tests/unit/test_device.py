"""Copies between host and device: on the CPU there are none."""

import numpy as np
import torch

from hiscore.device import download, upload


def test_on_the_cpu_nothing_is_copied() -> None:
    values = np.arange(4, dtype=np.int32)
    uploaded = upload(values, torch.device("cpu"))
    assert (uploaded.dtype, uploaded.tolist()) == (torch.int32, [0, 1, 2, 3])
    assert uploaded.data_ptr() == values.ctypes.data
    assert upload(uploaded, torch.device("cpu")) is uploaded
    assert download(uploaded) is uploaded
